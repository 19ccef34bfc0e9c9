"""Child processes: start, frames over a socket, limits, and the end of whole process trees.

    process.py        the parent's side: `Child`, `kill_tree`
    inside.py         the child's side: `connect`
    frames.py         payloads with their length in front, over a blocking socket
    frame_reader.py   the same in an event loop, with a time limit
    limits.py         limits of the machine's resources, set by the child itself
    process_table.py  whether a process runs, by its id

A child never outlives its parent, and killing a child kills its own children. The payloads are the user's choice:
MessagePack for processes that run users' code, never pickle.
"""
