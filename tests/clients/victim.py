"""A client process that opens streams and reads none, made to be killed.

python victim.py HOST PORT REQUEST_IN_HEX NUM_STREAMS
"""

import socket
import sys
import time

address, data = (sys.argv[1], int(sys.argv[2])), bytes.fromhex(sys.argv[3])
streams = [socket.create_connection(address) for _ in range(int(sys.argv[4]))]
for stream in streams:
    stream.sendall(data)
print("open", flush=True)
time.sleep(600)
