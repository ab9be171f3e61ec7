package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// doors are where the API listens: where it was told to, and on the loopback interface in any case, since agents speak plain HTTP there
// and nowhere else.
type doors struct {
	front net.Listener
	back  net.Listener // nil: the front is on the loopback interface
}

// openDoors listens. It says which port is taken and what to do about it.
func openDoors(ctx context.Context, address string) (doors, error) {
	front, err := listen(ctx, address)
	if err != nil {
		return doors{}, err
	}
	d := doors{front: front}
	if d.open() {
		if d.back, err = listen(ctx, "127.0.0.1:0"); err != nil {
			return doors{}, errors.Join(err, front.Close())
		}
	}
	return d, nil
}

func listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w\nChoose another address, e.g.: make run ARGS=\"--listen 127.0.0.1:8090\"", address, err)
	}
	return listener, nil
}

// open reports whether others than this machine can come in.
func (d doors) open() bool { return !d.ip().IsLoopback() }

func (d doors) ip() net.IP {
	if address, ok := d.front.Addr().(*net.TCPAddr); ok {
		return address.IP
	}
	return nil
}

func (d doors) port() string {
	if address, ok := d.front.Addr().(*net.TCPAddr); ok {
		return strconv.Itoa(address.Port)
	}
	return "0"
}

// url is the API's address for people and programs on this machine.
func (d doors) url() string {
	if d.ip().IsUnspecified() {
		return "http://" + net.JoinHostPort("127.0.0.1", d.port())
	}
	return "http://" + d.front.Addr().String()
}

// agentsURL is the API's address for the simulated site.
func (d doors) agentsURL() string {
	if d.back != nil {
		return "http://" + d.back.Addr().String()
	}
	return "http://" + d.front.Addr().String()
}

// publicURL is the API's address for everybody it listens for: on all interfaces the one of the first that others can reach.
func (d doors) publicURL() string {
	if told := os.Getenv("LEASEHOLD_PUBLIC_URL"); told != "" {
		return told
	}
	if !d.ip().IsUnspecified() {
		return d.url()
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return d.url()
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && network.IP.To4() != nil {
			return "http://" + net.JoinHostPort(network.IP.String(), d.port())
		}
	}
	return d.url()
}

// warning is what whoever opens the front door to others has to know; "": it is closed.
func (d doors) warning() string {
	if !d.open() {
		return ""
	}
	return "Attention: API and portal listen on " + d.front.Addr().String() + " by plain HTTP. Whoever is on that network can read passwords and keys\n" +
		"on their way. For more than a look, put a proxy with HTTPS in front and tell its address in LEASEHOLD_PUBLIC_URL."
}

func (d doors) close() {
	_ = d.front.Close()
	if d.back != nil {
		_ = d.back.Close()
	}
}

// serve runs the server behind every door until the context ends, and then lets it finish what it is at.
func (d doors) serve(ctx context.Context, server *http.Server) error {
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		stopped <- server.Shutdown(grace)
	}()
	ended := make(chan error, 2)
	listeners := []net.Listener{d.front}
	if d.back != nil {
		listeners = append(listeners, d.back)
	}
	for _, listener := range listeners {
		go func() { ended <- server.Serve(listener) }()
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return <-stopped
}
