"""Prices over HTTP, cached by three workers that invalidate each other.

    pip install fastapi uvicorn
    PRICES=DIRECTORY uvicorn service:app --workers 3
    curl -X PUT --data 3 localhost:8000/price/tea; curl -i localhost:8000/price/tea

Each price is a file of the directory. A worker answers a PUT when no worker has the old price any
more. Kill one with `kill -9`: the others go on, and the one that uvicorn starts in its place joins.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from cache import Cache
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi import Path as InPath

import ringcast

Name = Annotated[str, InPath(pattern=r"^\w+$")]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    name = f"worker-{os.getpid()}"
    async with ringcast.join("prices", name=name) as group, asyncio.TaskGroup() as tasks:
        app.state.cache = Cache(group, Path(os.environ["PRICES"]))
        following = tasks.create_task(app.state.cache.follow())
        yield
        await group.leave()
        await following


app = FastAPI(lifespan=lifespan)


@app.get("/price/{name}")
async def get(name: Name) -> Response:
    try:
        price = app.state.cache.get(name)
    except FileNotFoundError:
        raise HTTPException(404, f"no price of {name}") from None
    return _answer(price)


@app.put("/price/{name}")
async def put(name: Name, request: Request) -> Response:
    await app.state.cache.set(name, (await request.body()).decode())
    return _answer("set")


@app.get("/ready")
async def ready() -> Response:
    """For probes: 503 until this worker is in its group."""
    group = app.state.cache.group
    return _answer(str(group.view), status=200 if group.health().is_ready else 503)


def _answer(text: str, status: int = 200) -> Response:
    worker = app.state.cache.group.me.name
    return Response(text, status, {"X-Worker": worker}, media_type="text/plain")
