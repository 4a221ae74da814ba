"""The settings of the HTTP server."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from minigpt.errors import ConfigError
from minigpt.settings import Settings, setting

MOST_PROMPTS = 10_000  # in one request, whatever the settings
_HOST = re.compile(r"(\[(?P<address>[^\]]+)\]|(?P<name>[^\[\]:/?#@\\\s]+))(:[0-9]{0,5})?")


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Settings):
    """Where the server listens, whom it answers, and how much work it accepts."""

    host: str = setting("127.0.0.1", "address to listen on; beyond this machine an API key is required", common=True)
    port: int = setting(8000, "port to listen on; 0 chooses a free one", min=0, max=65535, common=True)
    api_key: str = setting(
        "", "key that clients must send; MINIGPT_API_KEY keeps it out of the list of processes", common=True
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), "another name that a request's Host header may give; repeatable", common=True
    )
    cors: tuple[str, ...] = setting(
        (), "origin whose web pages may use the server, as in http://localhost:3000; repeatable", common=True
    )
    max_batch: int = setting(16, "texts to generate at once", min=1, max=1024, group="Limits", common=True)
    max_queue: int = setting(112, "texts that may wait; more are refused", min=0, group="Limits")
    max_prompts: int = setting(128, "prompts in one request", min=1, max=MOST_PROMPTS, group="Limits")
    max_total_tokens: int = setting(
        262_144, "tokens in one request: of its prompts, and to generate", min=1, group="Limits"
    )
    timeout: float = setting(600.0, "seconds until a request is ended", above=0, group="Limits")
    max_connections: int = setting(1000, "connections at once", min=1, group="Limits")
    prefix_cache: int = setting(
        512,
        "megabytes per model for the beginnings of earlier prompts; 0: off",
        min=0,
        group="Limits",
    )
    shutdown_timeout: float = setting(
        10.0, "seconds that running requests have after Ctrl-C or SIGTERM", min=0, group="Limits"
    )
    log_prompts: bool = setting(False, "print prompts on standard error")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.host:
            raise ConfigError("host ('') must be an address to listen on, such as 127.0.0.1")
        if not self.is_local and not self.api_key:
            raise ConfigError(
                f"host ({self.host!r}) lets other machines use the server, which needs a key: give --api-key or set "
                "MINIGPT_API_KEY, or use 127.0.0.1"
            )
        if not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ConfigError("api_key must consist of printable ASCII characters, because it is sent in a header")
        if self.api_key != self.api_key.strip():
            raise ConfigError("api_key must not begin or end with a space, because no client can send such a key")
        for host in self.allowed_hosts:
            if not host_name(host):
                raise ConfigError(f"allowed_hosts ({host!r}) must be a host name alone, such as my-server.lan")
        for origin in self.cors:
            if origin != "*":
                _check_origin(origin)

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


def host_name(host: str) -> str:
    """The name in a Host header, without the port and in lower case; empty for what is none.

    An option may also have an IPv6 address without its brackets.
    """
    match = _HOST.fullmatch(host)
    try:
        if match is None or match["address"]:
            return str(ipaddress.IPv6Address(host if match is None else match["address"]))
    except ValueError:
        return ""
    return match["name"].lower().rstrip(".")


def _check_origin(origin: str) -> None:
    """Raises: ConfigError for what no browser sends as an Origin header."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"cors ({origin!r}) must be an origin such as http://localhost:3000, or *")
    usual_port = ":80" if parts.scheme == "http" else ":443"  # which browsers omit
    sent = f"{parts.scheme}://{parts.netloc.removesuffix(usual_port)}".lower()
    if origin != sent:
        raise ConfigError(f"cors ({origin!r}) must be the origin alone, as browsers send it: {sent}")
