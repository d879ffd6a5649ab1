"""`python -m deltahub.server`: the server without the rest of the command line."""

from deltahub.server.process.commands import serve

if __name__ == "__main__":
    serve(prog_name="deltahub serve")
