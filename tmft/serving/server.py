"""Answer /v1/embeddings and /v1/models of OpenAI's API with the embeddings of a model, by LitServe.

The texts of all requests that wait are embedded by one call of the model. A request goes through three
places: BoundedQueue reads it, and refuses it if it is too long, or while too many bytes of others wait;
ValidatingEmbeddingSpec checks it, and keeps it where it can still be dropped until the model has little else
to do; EmbeddingAPI, in a process of its own, answers it. docs/serving.md says what clients see. This module
needs LitServe.
"""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litserve
import numpy as np
from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from litserve.specs.openai_embedding import EmbeddingRequest, EmbeddingResponse, OpenAIEmbeddingSpec
from pydantic import field_validator
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from tmft.errors import InputError
from tmft.sentence_encoder import SentenceEncoder, check_finite_embeddings
from tmft.speed.matmul import prepacked_weights
from tmft.tokenizer import check_sentences

MAX_BYTES, MAX_TEXTS, MAX_LENGTH = 4_000_000, 2048, 100_000  # of a request; in one; characters of a text
TIMEOUT = 30  # seconds until a request is given up; so many to arrive, and so many to be answered
MAX_WAITING = 10 * MAX_BYTES  # bytes of all requests that wait; more are refused
BYTES_OF_A_REQUEST = 1000  # besides those of its body
MAX_TEXTS_AT_WORK = 512  # texts that are handed to the model; requests beyond wait where they can be dropped
MAX_REQUESTS_TOGETHER = 64  # that one call of the model answers
# The ids of another tokenizer would be other words of ours, and nobody would notice.
TOKEN_IDS_PROBLEM = (
    "input has numbers, which are token ids of the client's own tokenizer and no text of this model: send "
    "strings (LangChain: check_embedding_ctx_length=False)"
)
BATCH_TIMEOUT = 0.005  # seconds for which requests are collected; a single request waits as long


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

    @field_validator("encoding_format", mode="before")
    @classmethod
    def default_format(cls, value: Any) -> Any:
        """Return the format that is meant: null is float."""
        return "float" if value is None else value


class ValidatingEmbeddingSpec(OpenAIEmbeddingSpec):
    """Refuse bad requests before they are queued: an error in `predict` would fail others, too.

    dimensions: those of the model's embeddings.
    """

    def __init__(self, dimensions: int):
        super().__init__()
        self.dimensions, self.texts_at_work, self.has_room = dimensions, 0, asyncio.Condition()

    def pre_setup(self, lit_api: litserve.LitAPI) -> None:
        """Allow lists of texts, which the spec refuses if requests are collected; `predict` splits them."""
        super().pre_setup(lit_api)
        self._max_batch_size = 1

    def encode_response(self, output: dict[str, Any], context_kwargs: dict | None = None) -> dict[str, Any]:
        """Return the output of `predict` unchanged: it has the number of tokens already."""
        return output

    async def embeddings_endpoint(self, request: NullFormatRequest, connection: Request) -> EmbeddingResponse:
        """Check a request and return its answer, unless its client hangs up or TIMEOUT passes."""
        num_texts = self.check(request)
        answer = asyncio.create_task(self.answer_in_turn(request, num_texts))
        end = asyncio.get_running_loop().time() + TIMEOUT
        while not answer.done() and asyncio.get_running_loop().time() < end:
            await asyncio.wait([answer], timeout=0.5)
            if not answer.done() and await connection.is_disconnected():
                break  # nobody waits for the answer
        if answer.done():
            return answer.result()
        answer.cancel()
        raise HTTPException(504, f"no answer within {TIMEOUT} seconds")

    def check(self, request: NullFormatRequest) -> int:
        """Return the number of texts of a request, or refuse it with status 400."""
        if isinstance(request.input, list) and any(isinstance(text, int | list) for text in request.input):
            raise HTTPException(400, TOKEN_IDS_PROBLEM)
        try:
            texts = check_sentences(request.ensure_list())
        except (TypeError, InputError) as error:
            raise HTTPException(400, f"input: {error}") from None
        if not 0 < len(texts) <= MAX_TEXTS:
            raise HTTPException(400, f"input has {len(texts)} texts: give 1 to {MAX_TEXTS}")
        longest = max(map(len, texts))
        if longest > MAX_LENGTH:
            raise HTTPException(400, f"input has a text of {longest} characters: give at most {MAX_LENGTH}")
        if request.dimensions is not None and not 0 < request.dimensions <= self.dimensions:
            raise HTTPException(400, f"dimensions is {request.dimensions}: give 1 to {self.dimensions}")
        return len(texts)

    async def answer_in_turn(self, request: NullFormatRequest, num_texts: int) -> EmbeddingResponse:
        """Wait until the model has little else to do, where it can be cancelled, and then for its answer."""
        async with self.has_room:
            await self.has_room.wait_for(
                lambda: not self.texts_at_work or self.texts_at_work + num_texts <= MAX_TEXTS_AT_WORK
            )
            self.texts_at_work += num_texts
        return await asyncio.shield(asyncio.create_task(self.answer(request, num_texts)))

    async def answer(self, request: NullFormatRequest, num_texts: int) -> EmbeddingResponse:
        """Return the answer of the model. It stays at work also if the client hangs up meanwhile."""
        try:
            return await asyncio.wait_for(super().embeddings_endpoint(request), TIMEOUT)
        except TimeoutError:
            raise HTTPException(504, f"no answer within {TIMEOUT} seconds") from None
        finally:
            async with self.has_room:
                self.texts_at_work -= num_texts
                self.has_room.notify_all()


class BoundedQueue:
    """Read each request whole; refuse it if it is too long or too slow, or if too many bytes of others wait.

    The body of a refused request is read to its end, too: if the connection were closed while the client is
    still sending, the client would see an error in place of the answer.
    """

    def __init__(self, app: Callable):
        self.app, self.num_waiting = app, 0  # bytes

    async def __call__(self, scope: Any, receive: Callable, send: Callable) -> None:
        if scope["type"] != "http":  # the server starts or ends
            await self.app(scope, receive, send)
            return
        request, body = Request(scope, receive), bytearray()
        messages: list[dict[str, Any]] = []
        self.num_waiting += BYTES_OF_A_REQUEST

        async def receive_again() -> Any:
            """Return the body that was read; afterwards, whether the client has hung up."""
            return messages.pop() if messages else await receive()

        try:
            error = await self.read(request, body)
            if error is None:
                messages.append({"type": "http.request", "body": bytes(body)})
                await self.app(scope, receive_again, send)
            else:
                await (await refuse(request, error))(scope, receive, send)
        except ClientDisconnect:
            pass  # nobody waits for an answer
        finally:
            self.num_waiting -= BYTES_OF_A_REQUEST + len(body)

    async def read(self, request: Request, body: bytearray) -> HTTPException | None:
        """Append the body of a request to `body`; return why it is refused, when all of it has come."""
        length = 0
        try:
            async with asyncio.timeout(TIMEOUT):
                async for chunk in request.stream():
                    length += len(chunk)
                    if length <= MAX_BYTES and self.num_waiting + len(chunk) <= MAX_WAITING:
                        body += chunk
                        self.num_waiting += len(chunk)
        except TimeoutError:
            problem = f"the request took more than {TIMEOUT} seconds to arrive"
            return HTTPException(408, problem, {"Connection": "close"})
        if length > MAX_BYTES:
            return HTTPException(413, f"the request has {length} bytes: give at most {MAX_BYTES}")
        if len(body) < length:
            return HTTPException(503, "too many requests wait: try again later", {"Retry-After": "5"})
        return None


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
    spec = ValidatingEmbeddingSpec(dimensions)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1/embeddings"
    options = {"max_batch_size": MAX_REQUESTS_TOGETHER, "batch_timeout": BATCH_TIMEOUT}
    api = EmbeddingAPI(load, address, spec=spec, **options)
    server = litserve.LitServer(
        api,
        accelerator="cpu",  # `load` puts the model on its device
        timeout=TIMEOUT,
        restart_workers=True,
        fast_queue=True,
    )
    for kind in (AnyHTTPException, RequestValidationError, Exception):
        server.app.add_exception_handler(kind, refuse)
    server.app.add_middleware(BoundedQueue)
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
    server.run(host=host, port=port, generate_client_file=False)
