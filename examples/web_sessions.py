"""Sessions over HTTP that all workers know.

    pip install fastapi uvicorn
    uvicorn web_sessions:app --workers 3
    curl -X POST localhost:8000/login/ann; curl -i localhost:8000/who/SESSION

Whoever logs in at one worker is known at all, whichever takes the next request. Kill a worker with
`kill -9`: no session goes with it, and the one that uvicorn starts in its place has them all.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_urlsafe

from fastapi import FastAPI, HTTPException, Response

from ringcast import replicated

space = replicated.Space()
sessions = space.dict("sessions")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with space.join("web-sessions", name=f"worker-{os.getpid()}"):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/login/{user}")
async def login(user: str) -> Response:
    session = token_urlsafe(16)
    await sessions.set(session, user)
    return _answer(session)


@app.get("/who/{session}")
async def who(session: str) -> Response:
    """From this worker's own copy; behind all that has been answered anywhere if it has none."""
    user = await sessions.get(session) or await sessions.get(session, fresh=True)
    if user is None:
        raise HTTPException(404, "no such session")
    return _answer(user)


@app.delete("/session/{session}")
async def logout(session: str) -> Response:
    return _answer("bye" if await sessions.delete(session) else "nobody")


@app.get("/ready")
async def ready() -> Response:
    """For probes: 503 until this worker is in its group."""
    is_ready = space.group.health().is_ready
    return _answer(str(space.group.view), status=200 if is_ready else 503)


def _answer(text: str, status: int = 200) -> Response:
    return Response(text, status, {"X-Worker": space.me.name}, media_type="text/plain")
