"""Node with the pg package, on the same Postgres, as a peer to measure against. Called by bench.py."""

import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


class Node:
    """A running node_pg.js, and the table it works on."""

    def __init__(self, node, modules, stack):
        self.process = None
        socket_dir = next(
            word.split("=", 1)[1] for word in stack.dsn().split() if word.startswith("host=")
        )
        env = dict(
            os.environ, PGHOST=socket_dir, PGUSER="paddock", PGDATABASE="bench",
            NODE_PATH=str(modules), NODE_ENV="production",
        )  # fmt: skip
        # A session of its own, as every part of the service has: the scheduler may share the
        # CPUs by session.
        self.process = subprocess.Popen(
            [str(node), str(HERE / "node_pg.js")], env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("node_pg.js did not start")
        self.url = f"http://127.0.0.1:{int(line)}"

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
