"""Answer requests for embeddings over HTTP, in the form of OpenAI's API.

    python -m tmft serve data/tiny
    python -m tmft serve runs/<name> --port 8001 --dtype int8
    curl -s http://127.0.0.1:8000/v1/embeddings -H "Content-Type: application/json" \\
        -d '{"model": "tmft", "input": ["A man plays the guitar."]}'

The server needs LitServe (pip install ".[serve]"). It answers on this machine only, unless --host says
otherwise; Ctrl+C ends it. docs/serving.md says what it accepts and refuses, and what it does when it is busy.
"""

from argparse import Namespace
from functools import partial

from tmft.cli.options import add_embedding_options, add_model_options, command_device, load_model
from tmft.cli.parser import CommandLineParser
from tmft.errors import InputError, check_range


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    check_range("port", args.port, 1024, 65535)
    try:
        from tmft.serving.server import serve
    except ImportError as error:
        raise InputError(f"this command needs {error.name}: pip install 'litserve>=0.2.19,<0.3'") from None
    serve(partial(load_model, args, command_device(args.device)), args.host, args.port)


# fmt: off
def parse_args(argv: list[str] | None = None) -> Namespace:
    p = CommandLineParser(__doc__)
    add_model_options(p, int8=True)
    add_embedding_options(p)
    group = p.add_argument_group("server")
    group.add_argument("--host", choices=("127.0.0.1", "0.0.0.0", "::"), default="127.0.0.1",
                       help="127.0.0.1 answers this machine only, the others answer every machine that "
                       "reaches it; default: %(default)s")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="from 1024 to 65535; default: "
                       "%(default)s")
    return p.parse_args(argv)
# fmt: on
