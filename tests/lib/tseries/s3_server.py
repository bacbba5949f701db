"""A local S3 server, for a child process: `python s3_server.py`; prints its port.

moto first looks for an object and then writes it; a lock makes that one step, like Amazon's
conditional PUT. In the bucket `careless` conditions are ignored, as some services do. The key
`READER` may only read.
"""

import logging
import threading

from moto.server import create_backend_app
from werkzeug.serving import make_server


class OneAtATime:
    def __init__(self, app):
        self._app, self._lock = app, threading.Lock()

    def __call__(self, environ, start_response):
        if environ["PATH_INFO"].startswith("/careless/"):
            environ.pop("HTTP_IF_NONE_MATCH", None)
        writes = environ["REQUEST_METHOD"] not in ("GET", "HEAD")
        if writes and "Credential=READER/" in environ.get("HTTP_AUTHORIZATION", ""):
            answer = b"<Error><Code>AccessDenied</Code><Message>not READER</Message></Error>"
            start_response("403 Forbidden", [("Content-Length", str(len(answer)))])
            return [answer]
        with self._lock:
            answer = self._app(environ, start_response)
            try:
                return [b"".join(answer)]
            finally:
                getattr(answer, "close", lambda: None)()


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # A server of all services asks the disk for each of them, in each request.
    app = OneAtATime(create_backend_app("s3"))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()
