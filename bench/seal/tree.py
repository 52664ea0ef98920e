"""Makes a tree as of sources: tree.py DIR ENTRIES, or tree.py DIR 2g for one file of 2 GB. The same one every time."""
import math
import os
import random
import sys

into, size = sys.argv[1:]
dice = random.Random(7)
text = dice.randbytes(8 << 20)
if size == "2g":
    with open(os.path.join(into, "large"), "wb") as file:
        for n in range(250):
            file.write(b"%8d" % n + text[8:8_000_000])
    sys.exit()
entries = int(size)
# As in a repository, most files are of a few KiB; of the many of the largest tree less.
middle = 3500 if entries <= 20_000 else 350
places = [""]
for n in range(entries // 12):
    above = dice.choice(places[-150:])
    places.append((above + "/" if above.count("/") < 7 and above else "") + f"dir{n}")
for place in places:
    os.makedirs(os.path.join(into, place), exist_ok=True)
for n in range(entries):
    path = os.path.join(into, dice.choice(places), f"file{n}.{dice.choice(['py', 'rs', 'js', 'json'])}")
    if n % 100 == 99:
        os.symlink(f"file{n}", path)
        continue
    length = min(4 << 20, int(math.exp(dice.gauss(math.log(middle), 1.4))))
    begin = dice.randrange(0, len(text) - length)
    with open(path, "wb") as file:
        file.write(text[begin:begin + length])
    if n % 9 == 0:
        os.chmod(path, 0o755)
