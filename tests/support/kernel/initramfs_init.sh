#!/bin/busybox sh
# First program in the guest: inserts the virtio modules, puts a tmpfs over the host's read-only /, and goes there.
/bin/busybox --install -s /bin
fail() { echo "guest init: $*" >/dev/console; poweroff -f; }

mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t devtmpfs devtmpfs /dev || fail "no proc, sysfs or devtmpfs"
while read -r module; do
	insmod "/modules/$module" || fail "insmod $module"
done </modules/order

mount -t virtiofs -o ro host /host || fail "no virtiofs"
mount -t tmpfs -o mode=755 tmpfs /upper && mkdir /upper/files /upper/work || fail "no tmpfs"
mount -t overlay -o lowerdir=/host,upperdir=/upper/files,workdir=/upper/work overlay /root || fail "no overlay"

run=
for word in $(cat /proc/cmdline); do
	case $word in driver_manager.run=*) run=${word#*=} ;; esac
done
[ -r "/root$run/init.sh" ] || fail "the host's files do not hold $run/init.sh"
for place in proc sys dev; do mount --move "/$place" "/root/$place" || fail "cannot move /$place"; done
exec switch_root /root /bin/sh "$run/init.sh"
