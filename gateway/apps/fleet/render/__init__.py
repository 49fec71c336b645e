"""Launch blocks as files of the machines that run them: systemd units, launch scripts, compose files.

`rendering.py` is the entrance and pure: a snapshot gives the files and the notes. `files.py` has the effects:
files of this machine, and ssh.
"""
