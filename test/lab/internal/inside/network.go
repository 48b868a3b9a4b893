package inside

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
)

// QEMU's user network: the first guest's address, and the router that leads to the host.
const (
	address = "10.0.2.15/24"
	router  = "10.0.2.2"
)

func bringUpNetwork() error {
	if _, err := bringUp("lo"); err != nil {
		return err
	}
	link, err := bringUp("eth0")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("address of eth0: %w", err)
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(router)}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	return nil
}

func bringUp(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("network interface %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bring up %s: %w", name, err)
	}
	return link, nil
}
