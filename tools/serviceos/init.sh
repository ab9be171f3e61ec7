#!/bin/sh
# The service OS's first process: kernel file systems, modules, a network, and the agent, again and again. There is no log-in.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs -o mode=0755 tmpfs /run
mount -t tmpfs tmpfs /tmp
echo "leasehold service os: loading modules"
while read -r module; do
	insmod "/lib/modules/$module.ko" || echo "leasehold service os: module $module cannot be loaded"
done </lib/modules/order
ip link set lo up
for path in /sys/class/net/*; do
	interface=${path##*/}
	[ "$interface" = lo ] && continue
	ip link set "$interface" up
	udhcpc -q -n -t 10 -T 2 -i "$interface" -s /etc/udhcpc.script || echo "leasehold service os: no address for $interface"
done
authority=
[ -e /etc/leasehold-ca.pem ] && authority="--ca-file /etc/leasehold-ca.pem"
while :; do
	echo "leasehold service os: starting the agent"
	# shellcheck disable=SC2086 # two words or none.
	leasehold-agent service-os $authority
	sleep 3
done
