"""Answer /v1/embeddings and /v1/models of OpenAI's API with the embeddings of a model, by LitServe.

The texts of all requests that wait are embedded by one call of the model. EmbeddingSpec refuses bad requests;
EmbeddingAPI, in a process of its own, answers the others. The sizes, the number and the waiting time of
requests are limited by LitServe and uvicorn. docs/serving.md says what clients see. This module needs
LitServe.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import litserve
import numpy as np
from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from litserve.specs.openai_embedding import EmbeddingRequest, EmbeddingResponse, OpenAIEmbeddingSpec
from starlette.exceptions import HTTPException as AnyHTTPException

from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.speed.matmul import prepacked_weights
from tmft.tokenizer import check_sentences

MAX_BYTES, MAX_TEXTS = 20_000_000, 2048  # of a request
MAX_CONNECTIONS = 128  # a further client gets status 503
TIMEOUT = 30  # seconds; a request that has waited for longer is given up
MAX_REQUESTS_TOGETHER = 16  # that one call of the model answers
BATCH_TIMEOUT = 0.005  # seconds for which requests are collected; a single request waits as long
# The ids of another tokenizer would be other words of ours, and nobody would notice.
TOKEN_IDS_PROBLEM = (
    "input has numbers, which are token ids of the client's own tokenizer and no text of this model: send "
    "strings (LangChain: check_embedding_ctx_length=False)"
)


class EmbeddingAPI(litserve.LitAPI):
    """Embed the texts of several requests at once, in a process of its own.

    address: that of the embeddings, which is printed when they can be computed.
    """

    def __init__(self, load: Callable[[], SentenceEncoder], address: str = "", **options: Any):
        super().__init__(**options)
        self.load, self.address = load, address

    def setup(self, device: str) -> None:
        """Load the model and embed a first text, before the server says that it is healthy."""
        self.model = self.load().eval()
        self.fast_model = prepacked_weights(self.model.encoder)  # as long as this process
        self.fast_model.__enter__()
        [embedding], _ = self.embed(["warm-up"])
        self.has_unit_length = abs(np.linalg.norm(embedding) - 1) < 1e-4  # then that of every text has it
        print(f"Ready: {self.address} (Ctrl+C ends it)", flush=True)

    def embed(self, texts: list[str]) -> tuple[np.ndarray, list[int]]:
        """Return the embeddings of texts, and how many tokens each has."""
        token_ids = self.model.tokenize(texts)
        embeddings = self.model.embed_token_ids(token_ids)
        check_finite_embeddings(embeddings, texts)
        return embeddings.numpy(), [len(ids) for ids in token_ids]

    def decode_request(self, request: EmbeddingRequest) -> EmbeddingRequest:
        """Return the request as it is; the spec would return its texts alone."""
        return request

    def predict(self, requests: list[EmbeddingRequest]) -> list[dict[str, Any]]:
        """Return the embeddings of each request, and the number of its tokens."""
        inputs = [request.ensure_list() for request in requests]
        embeddings, num_tokens = self.embed([text for texts in inputs for text in texts])
        answers, start = [], 0
        for request, texts in zip(requests, inputs, strict=True):
            part = slice(start, start + len(texts))
            tokens = sum(num_tokens[part])
            vectors = embeddings[part, : request.dimensions]
            if request.dimensions is not None and self.has_unit_length:
                vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            answers.append({"embeddings": vectors, "prompt_tokens": tokens, "total_tokens": tokens})
            start = part.stop
        return answers


class NullFormatRequest(EmbeddingRequest):
    """A request in which encoding_format may be null, which stands for its default."""

    encoding_format: Literal["float", "base64"] | None = "float"


class EmbeddingSpec(OpenAIEmbeddingSpec):
    """Refuse bad requests before they are queued: an error in `predict` would fail others, too.

    dimensions: those of the model's embeddings.
    """

    def __init__(self, dimensions: int):
        super().__init__()
        self.dimensions = dimensions

    def pre_setup(self, lit_api: litserve.LitAPI) -> None:
        """Allow lists of texts, which the spec refuses if requests are collected; `predict` splits them."""
        super().pre_setup(lit_api)
        self._max_batch_size = 1

    def encode_response(self, output: dict[str, Any], context_kwargs: dict | None = None) -> dict[str, Any]:
        """Return the output of `predict` unchanged: it has the number of tokens already."""
        return output

    async def embeddings_endpoint(self, request: NullFormatRequest) -> EmbeddingResponse:
        """Return the answer of the model, or refuse the request with status 400."""
        texts = request.ensure_list()
        if not all(isinstance(text, str) for text in texts):
            raise HTTPException(400, TOKEN_IDS_PROBLEM)
        if not 0 < len(texts) <= MAX_TEXTS:
            raise HTTPException(400, f"input has {len(texts)} texts: give 1 to {MAX_TEXTS}")
        try:
            check_sentences(texts)
        except InputError as error:
            raise HTTPException(400, f"input: {error}") from None
        if request.dimensions is not None and not 0 < request.dimensions <= self.dimensions:
            raise HTTPException(400, f"dimensions is {request.dimensions}: give 1 to {self.dimensions}")
        return await super().embeddings_endpoint(request)


async def refuse(request: Request, error: Any) -> JSONResponse:
    """Answer an error in the form of OpenAI's API, the message of which its clients show.

    Of a request that is not valid the wrong fields are named, because FastAPI's message would repeat all
    texts. What went wrong here is answered without its details.
    """
    if isinstance(error, RequestValidationError):
        problems = {f"{problem['loc'][:2][-1]}: {problem['msg']}" for problem in error.errors()}
        error = HTTPException(400, "; ".join(sorted(problems)))
    elif not isinstance(error, AnyHTTPException):
        error = HTTPException(500, "the server failed: see its log")
    return JSONResponse({"error": {"message": error.detail}}, error.status_code, error.headers)


def serve(load: Callable[[], SentenceEncoder], host: str = "127.0.0.1", port: int = 8000) -> None:
    """Answer requests until Ctrl+C or SIGTERM.

    load: returns the model; it is called here, for what is wrong with the model, and in the process that
    embeds, so it has to be picklable. host: 127.0.0.1, or 0.0.0.0 or :: for other machines. Raises InputError
    if the port is taken.
    """
    model = load()
    dimensions, name = model.dimensions, Path(model.source).name
    del model  # this process does not embed
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if host == "::" else socket.AF_INET).close()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise InputError(f"port {port} of {host}: {reason}, choose another one", "port") from None
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/embeddings"
    options = {"max_batch_size": MAX_REQUESTS_TOGETHER, "batch_timeout": BATCH_TIMEOUT}
    server = litserve.LitServer(
        EmbeddingAPI(load, address, spec=EmbeddingSpec(dimensions), **options),
        accelerator="cpu",  # `load` puts the model on its device
        timeout=TIMEOUT,
        max_payload_size=MAX_BYTES,
        restart_workers=True,
        fast_queue=True,
    )
    for kind in (AnyHTTPException, RequestValidationError, Exception):
        server.app.add_exception_handler(kind, refuse)
    served = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "tmft"}
    server.app.add_api_route("/v1/models", lambda: {"object": "list", "data": [served]})
    starter = os.getpid()

    def stop(signal_number: int, frame: Any) -> None:
        """End the server. Its other processes get the signal, too, when they have ended what they did."""
        if os.getpid() != starter:
            raise SystemExit
        logging.disable()  # a thread that watches the other processes may complain that they have ended
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.run(host=host, port=port, generate_client_file=False, limit_concurrency=MAX_CONNECTIONS)
