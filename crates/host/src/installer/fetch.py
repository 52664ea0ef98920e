# Downloads artifacts that a lock names. It runs in the sandbox of the fetch stage; what it brings is digested outside.
# Arguments: a JSON file with a list of {"url", "indexes", "name", "file", "to"}, and how many at once.
import base64, concurrent.futures, html.parser, inspect, json, os, shutil, ssl, sys, time
import urllib.error, urllib.parse, urllib.request

AUTHORITIES = [name for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE") if os.path.isfile(os.environ.get(name, ""))]
CONTEXT = ssl.create_default_context(cafile=os.environ[AUTHORITIES[0]] if AUTHORITIES else None)
OPENER = urllib.request.build_opener(urllib.request.HTTPSHandler(context=CONTEXT))
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


def userinfo(url):
    parts = urllib.parse.urlsplit(url)
    if not parts.username:
        return None
    words = (parts.username, parts.password or "")
    return ":".join(urllib.parse.unquote(word) for word in words)


def origin(parts):
    return parts.scheme, parts.hostname, parts.port


# Operators give credentials in the addresses of their indexes; they are repeated to the very same origin alone.
KNOWN = {}
for value in os.environ.values():
    for word in value.split():
        if "://" in word and "@" in word:
            try:
                KNOWN[origin(urllib.parse.urlsplit(word))] = userinfo(word)
            except ValueError:
                pass


def open_url(url, accept):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"not an address of the web: {url}")
    host = parts.hostname + (f":{parts.port}" if parts.port else "")
    request = urllib.request.Request(urllib.parse.urlunsplit((parts.scheme, host, parts.path, parts.query, "")))
    request.add_header("Accept", accept)
    request.add_header("User-Agent", "semel")
    secret = userinfo(url) or KNOWN.get(origin(parts))
    if secret:
        # Not repeated to where the answer may lead.
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(secret.encode()).decode())
    for again in (1, 2, 4, 0):
        try:
            return OPENER.open(request, timeout=60)
        except urllib.error.HTTPError as error:
            if not again or error.code not in (408, 429, 500, 502, 503, 504):
                raise
        except OSError:
            if not again:
                raise
        time.sleep(again)


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        target = dict(attributes).get("href")
        if tag == "a" and target:
            self.found.append(target)


def file_name(url):
    return urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1])


def look_up(index, name, file):
    page = f"{index.rstrip('/')}/{name}/"
    with open_url(page, ACCEPT) as answer:
        body, page, kind = answer.read(), answer.geturl(), answer.headers.get_content_type()
    if kind.endswith("json"):
        links = [entry["url"] for entry in json.loads(body)["files"]]
    else:
        reader = Links()
        reader.feed(body.decode("utf-8", "replace"))
        links = reader.found
    for link in links:
        if file_name(link) == file:
            return urllib.parse.urljoin(page, link)
    raise ValueError(f"{index} has no {file}")


def download(url, to):
    with open_url(url, "*/*") as answer, open(to + ".part", "wb") as out:
        shutil.copyfileobj(answer, out, 1 << 20)
    os.rename(to + ".part", to)


def public():
    """The index that Poetry itself asks where nobody names another; nothing in any other interpreter."""
    try:
        from poetry.repositories.pypi_repository import PyPiRepository

        address = inspect.signature(PyPiRepository.__init__).parameters["url"].default
        return [address.rstrip("/") + "/simple"]
    except Exception:
        return []


PUBLIC = public()


def take(wanted):
    said = []
    ways = [lambda: wanted["url"]] if wanted["url"] else []
    indexes = wanted["indexes"] or PUBLIC
    ways += [lambda index=index: look_up(index, wanted["name"], wanted["file"]) for index in indexes]
    for way in ways:
        try:
            return download(way(), wanted["to"])
        except Exception as error:
            said.append(f"{wanted['file']}: {error}")
    return " | ".join(said) or f"{wanted['file']}: nobody says where it is"


with open(sys.argv[1]) as listed:
    everything = json.load(listed)
with concurrent.futures.ThreadPoolExecutor(int(sys.argv[2])) as pool:
    failures = [said for said in pool.map(take, everything) if said]
for said in failures[:20]:
    print(said, file=sys.stderr)
sys.exit(1 if failures else 0)
