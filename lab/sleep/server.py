# SPDX-License-Identifier: Apache-2.0
"""A server with numpy and a table of 64 MB, of which a request reads one row."""

import http.server

import numpy

table = numpy.random.default_rng(1).random((8192, 1024))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = b"%.6f\n" % table[17].mean()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
