"""Sessions that all servers know: `python sessions.py`.

Type `login USER`, `who SESSION` or `logout SESSION`. Any member may be asked, and answers from its
own copy; `sure SESSION` asks behind everything that has been answered anywhere. A server that is
started later has all sessions, and one that dies takes none with it.
"""

import asyncio
import sys

from ringcast import replicated


async def answer(line: str, sessions: replicated.Dict, logins: replicated.Counter) -> str:
    match line.split():
        case ["login", user]:
            session = f"s{await logins.add()}"
            await sessions.set(session, user)
            return session
        case ["who", session]:
            return str(sessions[session]) if session in sessions else "nobody"
        case ["sure", session]:
            return str(await sessions.get(session, "nobody", fresh=True))
        case ["logout", session]:
            return "bye" if await sessions.delete(session) else "nobody"
    return "login USER, who SESSION, sure SESSION, or logout SESSION"


async def main() -> None:
    space = replicated.Space()
    sessions, logins = space.dict("sessions"), space.counter("logins")
    async with space.join("sessions"):
        print(f"{len(sessions)} sessions", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await answer(line, sessions, logins), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
