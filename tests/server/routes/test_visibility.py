"""A repository becomes private or public through /v1."""

from deltahub.registry.access import tokens
from support.service.hub import RunningHub


def test_its_owner_hides_a_repository_and_shows_it_again(hub: RunningHub) -> None:
    owner, other = hub.user("shy"), hub.user("curious")
    hub.create("shy/model", token=owner)
    hub.commit("shy/model", {"a.txt": b"open"}, token=owner)
    path = "/v1/repositories/shy/model"
    for token, status in ((other, 403), (None, 401)):
        assert hub.call("PATCH", path, token=token, body={"private": True}).status == status
    reading = tokens.create_token(hub.registry, "shy", "read")
    assert hub.call("PATCH", path, token=reading, body={"private": True}).status == 403
    for body in ({}, {"private": None}, {"private": True, "name": "shy/other"}):
        assert hub.call("PATCH", path, token=owner, body=body).code == "invalid_request"
    for is_private, status in ((True, 404), (True, 404), (False, 200), (False, 200)):
        answer = hub.call("PATCH", path, token=owner, body={"private": is_private})
        assert (answer.status, answer.json()["private"]) == (200, is_private)
        assert hub.call("GET", f"{path}/files/a.txt", token=other).status == status
        if is_private:
            hub.commit("shy/model", {"a.txt": b"now open", "b.txt": b"secret"}, token=owner)
            shown = hub.call("PATCH", path, token=other, body={"private": False})
            assert (shown.status, shown.code) == (404, "repository_not_found")
    assert hub.call("GET", f"{path}/files/b.txt").body == b"secret"
