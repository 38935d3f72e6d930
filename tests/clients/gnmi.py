"""pygnmi from PyPI against a switch: capabilities, values of ports, subscriptions.

gnmi.py GRPC DEVICE_ID P4INFO JSON

Ports 1 and 2 are on sockets, 64 is the CPU port. Exits with status 3 if the package is not installed.
"""

import sys

try:
    from pygnmi.client import gNMIclient, gNMIException
except ModuleNotFoundError as error:
    print(f"the Python module {error.name} is not installed", file=sys.stderr)
    sys.exit(3)


def leaves(answer):
    """Values by path of a Get."""
    updates = [it for note in answer["notification"] for it in note.get("update", [])]
    return {it["path"]: it["val"] for it in updates}


def main():
    host, port = sys.argv[1].rsplit(":", 1)
    with gNMIclient(target=(host, port), insecure=True) as client:
        capabilities = client.capabilities()
        assert capabilities["gnmi_version"] == "0.10.0", capabilities
        names = [model["name"] for model in capabilities["supported_models"]]
        assert names == ["openconfig-interfaces"], names
        assert set(capabilities["supported_encodings"]) == {"json", "json_ietf", "proto"}

        for encoding in ("json_ietf", "json", "proto"):
            path = ["/interfaces/interface[name=*]/state/id"]
            ids = leaves(client.get(path=path, encoding=encoding))
            assert sorted(ids.values()) == [1, 2, 64], ids
            path = ["/interfaces/interface[name=*]/state/oper-status"]
            up = leaves(client.get(path=path, encoding=encoding))
            assert set(up.values()) == {"UP"}, up
        first = next(path for path, port in ids.items() if port == 1)
        name = first.split("[name=")[1].split("]")[0]
        prefix = f"/interfaces/interface[name={name}]"
        config = leaves(client.get(path=[prefix], datatype="config", encoding="proto"))
        assert sorted(config.values(), key=str) == sorted([name, True], key=str), config

        try:
            client.get(path=["/system/memory"], encoding="proto")
        except gNMIException as error:
            assert "/system/memory does not exist" in str(error), error
        else:
            raise AssertionError("the path does not exist")
        try:
            client.set(update=[(f"{prefix}/config/enabled", {"enabled": False})], encoding="json")
        except gNMIException:
            pass
        else:
            raise AssertionError("a port on a socket cannot be set")

        subscription = {
            "subscription": [{"path": f"{prefix}/state/oper-status", "mode": "on_change"}],
            "mode": "stream",
            "encoding": "proto",
        }
        stream = client.subscribe2(subscribe=subscription)
        update = next(stream)["update"]["update"]
        assert [it["val"] for it in update] == ["UP"], update
        stream.close()
        once = dict(subscription, mode="once")
        update = next(client.subscribe2(subscribe=once))["update"]["update"]
        assert [it["val"] for it in update] == ["UP"], update


main()
