"""What `gpu_prepare.py` and `gpu_check.py` are made of. A part is a module with `check(job, report)`."""
