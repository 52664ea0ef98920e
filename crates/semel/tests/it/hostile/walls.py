import ctypes, errno, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
here = os.getcwd()
found = []
def no(name, way, *expected):
    try:
        way()
        found.append(name)
    except OSError as e:
        if expected and e.errno not in expected: found.append(f"{name}: {errno.errorcode.get(e.errno, e.errno)}")
def call(number, *args):
    if libc.syscall(number, *args) < 0: raise OSError(ctypes.get_errno(), "")
def sh(line):
    if subprocess.run(["/bin/sh", "-c", line], stdout=2, stderr=subprocess.DEVNULL).returncode: raise OSError(1, line)
for place in ["src/lib.rs", "check.py", here + "/Cargo.toml"]:
    no("append " + place, lambda: open(place, "ab"), errno.EROFS)
    no("truncate " + place, lambda: os.truncate(place, 0), errno.EROFS)
    no("remove " + place, lambda: os.remove(place), errno.EROFS)
    no("chmod " + place, lambda: os.chmod(place, 0o600), errno.EROFS)
    no("utime " + place, lambda: os.utime(place, (1, 1)), errno.EROFS)
    no("rename " + place, lambda: os.rename(place, place + "x"), errno.EROFS)
    for root in ["/proc/self/root", "/proc/1/root", "/proc/self/cwd/../../../../../../../../../.."]:
        no(root + place, lambda: open(root + os.path.abspath(place), "ab"))
no("new file", lambda: open("new", "w"), errno.EROFS)
no("link out", lambda: os.link("check.py", os.environ["TMPDIR"] + "/l"), errno.EXDEV, errno.EROFS, errno.EPERM)
no("git", lambda: os.mkdir(".git"), errno.EROFS, errno.EEXIST)
for line in ["mount -o remount,rw .", "mount -o remount,bind,rw " + here, "umount " + here, "umount -l " + here,
             "mount --bind /tmp src", "mount -t tmpfs none src", "unshare -m true", "unshare -n true",
             "unshare -Urm sh -c 'mount -o remount,bind,rw " + here + "'",
             "unshare -Urm sh -c 'umount -l " + here + "'",
             "unshare -Urm sh -c 'mount --bind " + here + " /tmp; echo x >> /tmp/check.py'",
             "unshare -Urm sh -c 'mount -t overlay none -o lowerdir=" + here + ",upperdir=/tmp,workdir=/var/tmp " + here + " && echo x >> check.py && exit 0'",
             "nsenter -t 1 -m true", "chroot / true"]:
    no(line, lambda: sh(line))
# By handle: name_to_handle_at, open_by_handle_at.
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
handle, mount = Handle(bytes=128), ctypes.c_int()
if libc.name_to_handle_at(-100, b"check.py", ctypes.byref(handle), ctypes.byref(mount), 0) == 0:
    def by_handle():
        if libc.open_by_handle_at(-100, ctypes.byref(handle), os.O_RDWR) < 0: raise OSError(ctypes.get_errno(), "")
    no("open_by_handle_at", by_handle, errno.EPERM)
def ptrace():
    if libc.ptrace(16, 1, 0, 0) < 0: raise OSError(ctypes.get_errno(), "")
no("ptrace", ptrace, errno.EPERM)
# A key that another session put into the user's keyring: none is there, and none of ours outlives us.
def keys():
    text = open("/proc/keys").read() if os.path.exists("/proc/keys") else ""
    if "semel-secret" in text: return
    raise OSError(errno.ENOKEY, "")
no("keys", keys)
def inject():
    import fcntl, termios
    fd = os.open("/dev/tty", os.O_RDWR)
    fcntl.ioctl(fd, termios.TIOCSTI, b"x")
no("TIOCSTI", inject)
no("host's network", lambda: socket.create_connection(("127.0.0.1", int(PORT)), 2))
devices = sorted(name for _, name in socket.if_nameindex())
if not set(devices) <= {"lo", "sit0", "tunl0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6gre0"}: found.append(f"devices {devices}")
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 2)
try:
    socket.create_connection(("192.0.2.1", 9), 2); found.append("routed")
except OSError as e:
    if e.errno != errno.ENETUNREACH: found.append(f"route {e}")
for secret in SECRETS:
    no("read " + secret, lambda: open(secret, "rb"))
os.makedirs("cache/deep", exist_ok=True); open("cache/deep/f", "w").write("kept")
if found: sys.exit("\n".join(found))
