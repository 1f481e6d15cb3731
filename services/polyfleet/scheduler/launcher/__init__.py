"""One launcher and the worker that it looks after: started or found, told what to load, watched."""
