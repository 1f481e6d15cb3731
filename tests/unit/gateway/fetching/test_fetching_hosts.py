"""Which URLs may be fetched, and to which addresses a connection may go."""

from ipaddress import ip_address

import pytest

from polyfleet.gateway.fetching.hosts import ImageHost, find_host
from polyfleet.wire.limits import FieldError

ENTRIES = (
    "images.example.com",
    "*.cdn.example:8443",
    "http://minio.storage:9000=10.0.0.0/8,fd00::/8",
    "http://192.168.1.5",
    "[2606:4700::1111]",
)
HOSTS = [ImageHost.of(each) for each in ENTRIES]


@pytest.mark.parametrize(
    ("url", "number"),
    [
        ("https://images.example.com/a.png?b=c#d", 0),
        ("HTTPS://Images.Example.COM:443/a.png", 0),
        ("https://images.example.com./a.png", 0),
        ("https://x.cdn.example:8443/", 1),
        ("https://x.y.cdn.example:8443/", 1),
        ("http://minio.storage:9000/a", 2),
        ("http://192.168.1.5", 3),
        ("https://[2606:4700::1111]/", 4),
    ],
)
def test_a_url_is_of_its_host(url: str, number: int) -> None:
    assert find_host(HOSTS, url)[0] == HOSTS[number]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://images.example.com/a.png", "not http://images.example.com"),
        ("https://images.example.com:8443/", "not https://images.example.com:8443"),
        ("https://images.example.com.evil.example/", "operator allows"),
        ("https://evilimages.example.com/", "operator allows"),
        ("https://cdn.example:8443/", "operator allows"),
        ("https://evilcdn.example:8443/", "operator allows"),
        ("https://127.0.0.1/", "operator allows"),
        ("http://3232235781/", "operator allows"),  # 192.168.1.5 as one number
        ("https://images.example.com@evil.example/", "user name"),
        ("https://evil.example\\@images.example.com/", "neither a user name nor backslashes"),
        ("https://images.example.com/\r\nHost: x", "printable ASCII"),
        ("https://images.example.com/ü", "printable ASCII"),
        ("https://images.example.com:99999/", "no valid URL"),
        ("https://images.example.com:x/", "no valid URL"),
        ("https://[::1/", "no valid URL"),
        ("https://", "operator allows"),
        ("https:images.example.com", "operator allows"),
        ("file://images.example.com/etc/passwd", "operator allows"),
        ("https://images.example.com/" + "a" * 9000, "at most 8192 characters"),
    ],
)
def test_other_urls_are_refused(url: str, problem: str) -> None:
    with pytest.raises(FieldError, match=problem.replace("[", r"\[")):
        find_host(HOSTS, url)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fd00::1", "ff02::1", "::ffff:127.0.0.1"),
        *("::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "fec0::1", "5f00::1"),
        *("2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2001:0:0:0:0:0:80ff:fffe"),
    ],
)
def test_only_public_addresses_are_called(address: str) -> None:
    assert not HOSTS[0].allows(ip_address(address))


@pytest.mark.parametrize(
    ("number", "address", "allowed"),
    [
        (0, "93.184.216.34", True),
        (0, "2606:4700::1111", True),
        (0, "64:ff9b::5db8:d822", True),
        (2, "10.1.2.3", True),
        (2, "::ffff:10.1.2.3", True),
        (2, "fd12::1", True),
        (2, "127.0.0.1", False),
        (2, "169.254.169.254", False),
        (3, "192.168.1.5", True),
        (3, "192.168.1.6", False),
    ],
)
def test_an_entry_allows_what_it_names(number: int, address: str, allowed: bool) -> None:
    assert HOSTS[number].allows(ip_address(address)) is allowed


@pytest.mark.parametrize(
    "entry",
    ["", "*", "ftp://a", "a/b", "https://a/", "a b", "a:99999", "a=10.0.0.1/8", "a=", "A.example", "user@a", "a=x"],
)
def test_what_is_no_entry(entry: str) -> None:
    with pytest.raises(ValueError, match=r"must be like|out of range|host bits|not appear"):
        ImageHost.of(entry)
