import os

def attack(place):
    def overwrite():
        with open(place, "ab") as f: f.write(b"# changed\n")
    def replace():
        beside = place + ".new"
        with open(beside, "wb") as f: f.write(b"# changed\n")
        os.replace(beside, place)
    def link():
        os.link(place, os.path.join(os.environ["HOME"], "link")); open(os.path.join(os.environ["HOME"], "link"), "ab").write(b"x")
    def through_proc():
        open("/proc/self/root" + place, "ab").write(b"x")
    def through_init():
        open("/proc/1/root" + place, "ab").write(b"x")
    for way in [overwrite, replace, link, through_proc, through_init,
                lambda: os.remove(place), lambda: os.chmod(place, 0o777), lambda: os.utime(place, (1, 1)), lambda: os.truncate(place, 0)]:
        try:
            way()
            print("CHANGED", place, way.__name__, flush=True)
        except OSError as e:
            print("refused", place, way.__name__, e.errno, flush=True)
