# Process 1 of the guest, already in the host's files under an overlay. The host prepends the variables used here:
# BUSYBOX, RELEASE, KERNEL_MODULES, GUEST_ENVIRONMENT, PYTHON, CHECKOUT, NODE_IDS.
mkdir -p /run /tmp /dev/pts /dev/shm /lib/modules
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
# /tmp stays part of the overlay: a virtual environment or a checkout may live there.
rm -rf "/lib/modules/$RELEASE"
ln -s "$KERNEL_MODULES" "/lib/modules/$RELEASE"

"$BUSYBOX" ip link set lo up
"$BUSYBOX" ip link set eth0 up
"$BUSYBOX" ip address add 10.0.2.15/24 dev eth0
"$BUSYBOX" ip route add default via 10.0.2.2

# What is here outlives a reboot. A guest that starts over without being asked to (a panic) must not run its tests again.
mkdir -p /disk
mount -t virtiofs disk /disk
read -r boots 2>/dev/null </disk/boots || boots=0
boots=$((boots + 1))
echo "$boots" >/disk/boots

# Raw, so that the results arrive byte for byte.
"$BUSYBOX" stty -F /dev/ttyS1 raw -echo
. "$GUEST_ENVIRONMENT"
cd "$CHECKOUT" || "$BUSYBOX" poweroff -f
if [ "$boots" -gt 1 ]; then
	[ -e /disk/asked.json ] && [ "$boots" = 2 ] &&
		"$PYTHON" -m tests.support.kernel.second_boot >/dev/ttyS0 2>&1
	echo "guest init: boot $boots ends" >/dev/ttyS0
	"$BUSYBOX" poweroff -f
fi
"$PYTHON" -m tests.support.kernel.inside "$NODE_IDS" >/dev/ttyS0 2>&1
echo "guest init: tests exited $?" >/dev/ttyS0
"$BUSYBOX" poweroff -f
