class RayError(Exception): ...

class RayTaskError(RayError):
    cause: Exception
