"""`disc debug`: looks into the compiler."""
