"""HTTP by hand: what no client library lets one do, such as stopping in the middle of a body."""

import asyncio
import contextlib
import json
import socket
import struct
from dataclasses import dataclass

# The key tells callers apart: a stored response is its caller's.
COMMON = "Host: soak\r\nx-api-key: none\r\nConnection: close\r\n"


@dataclass
class Reply:
    status: int
    headers: dict
    body: bytes = b""

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The `data:` members of an event stream."""
        lines = self.body.decode().split("\n")
        return [line[6:] for line in lines if line.startswith("data: ")]


def post_bytes(path, body, *, length=None, chunked=False):
    """A whole POST; `length` announces another length than the body has."""
    head = (
        f"POST {path} HTTP/1.1\r\n{COMMON}Content-Type: application/json\r\n"
        "anthropic-version: 2023-06-01\r\n"
    )
    if chunked:
        return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % (length or len(body)) + body


class Connection:
    """One connection and at most one response on it."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self._is_chunked = False

    @classmethod
    async def open(cls, address, receive_buffer=None):
        plain = socket.socket()
        plain.setblocking(False)
        if receive_buffer is not None:  # before connecting: the window is agreed on then
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(plain, address)
            return cls(*await asyncio.open_connection(sock=plain, limit=receive_buffer or 65536))
        except BaseException:
            plain.close()
            raise

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def read_head(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {}
        for line in head[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._is_chunked = headers.get("transfer-encoding") == "chunked"
        return Reply(int(head[0].split()[1]), headers)

    async def pieces(self):
        """The body as it comes; a stream that is cut off raises IncompleteReadError."""
        if not self._is_chunked:
            while piece := await self.reader.read(65536):
                yield piece
            return
        while True:
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            piece = await self.reader.readexactly(size + 2)
            if size == 0:
                return
            yield piece[:-2]

    async def read_reply(self):
        reply = await self.read_head()
        reply.body = b"".join([piece async for piece in self.pieces()])
        return reply

    def reset(self):
        """Closes with RST, as a process that dies or a network that drops."""
        plain = self.writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self):
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def connect(address, receive_buffer=None):
    connection = await Connection.open(address, receive_buffer)
    try:
        yield connection
    finally:
        await connection.close()


async def post(address, path, body):
    """One request, its whole response. `body` is JSON or bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with connect(address) as connection:
        await connection.send(post_bytes(path, data))
        return await connection.read_reply()


async def get(address, path):
    async with connect(address) as connection:
        await connection.send(f"GET {path} HTTP/1.1\r\n{COMMON}\r\n".encode())
        return await connection.read_reply()
