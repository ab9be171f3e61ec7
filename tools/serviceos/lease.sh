#!/bin/sh
# What udhcpc has done with an address that it was given.
case $1 in
deconfig)
	ip addr flush dev "$interface"
	;;
bound | renew)
	ifconfig "$interface" "$ip" netmask "${subnet:-255.255.255.0}"
	for gateway in $router; do
		route add default gw "$gateway" dev "$interface" && break
	done
	: >/etc/resolv.conf
	for server in $dns; do
		echo "nameserver $server" >>/etc/resolv.conf
	done
	;;
esac
