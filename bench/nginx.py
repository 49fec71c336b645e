"""nginx as the yardstick: the leanest proxy there is, with the smallest configuration that is fair."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

# Buffers hold the agentic body, so that it is never written to disk; kept connections on both sides; nothing is logged.
CONFIG = """\
{user}worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log error;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  tcp_nodelay on;
  keepalive_requests 10000000;
  client_max_body_size 64m;
  client_body_buffer_size 256k;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream backends {{
{servers}
    keepalive 64;
    keepalive_requests 10000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://backends;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 300s;
    }}
  }}
}}
"""


def executable() -> str | None:
    """Where nginx is, if it is installed; `/usr/sbin` is often not on a user's PATH."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def command(binary: str, folder: Path, port: int, upstreams: Sequence[int]) -> list[str]:
    """Write the configuration into `folder`; the command that runs it in the foreground."""
    config = folder / "nginx.conf"
    config.write_text(
        CONFIG.format(
            user="user root;\n" if os.geteuid() == 0 else "",  # else the worker cannot use our folder
            folder=folder,
            port=port,
            servers="\n".join(f"    server 127.0.0.1:{upstream};" for upstream in upstreams),
        )
    )
    return [binary, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
