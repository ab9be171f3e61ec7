package smp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// diags is a transport over infiniband-diags' smpdump: one process a datagram, some hundred times slower than our own. It reads only, and asks
// the subnet administrator nothing.
type diags struct {
	command func(ctx context.Context, args ...string) *exec.Cmd
	options string // a file of infiniband-diags' options, for the M_Key; "": none
}

// NewDiags returns a transport that has smpdump (of infiniband-diags) send each request; command makes its command line. It is the way out where
// the kernel's MAD device cannot be used directly. With an M_Key, options is where a file with it is written, mode 0600: on a command line
// everybody on the host would see it.
//
// What it cannot do is refused: writing, and path queries.
func NewDiags(command func(ctx context.Context, args ...string) *exec.Cmd, mkey uint64, options string) (Transport, error) {
	d := &diags{command: command}
	if mkey == 0 {
		return d, nil
	}
	if err := os.WriteFile(options, fmt.Appendf(nil, "m_key=0x%016x\n", mkey), 0o600); err != nil {
		return nil, fmt.Errorf("write options of smpdump: %w", err)
	}
	d.options = options
	return d, nil
}

// errReadOnly is what this transport cannot do.
var errReadOnly = errors.New("smpdump reads along directed routes, and does nothing else")

// Exchange implements Transport.
func (d *diags) Exchange(ctx context.Context, _ Address, request MAD) (MAD, error) {
	if request.Class() != classSubnDirected || request[offMethod] != methodGet {
		return MAD{}, errReadOnly
	}
	path := Path(request[offInitialPath+1 : offInitialPath+1+int(request[offHopCount])])
	args := []string{
		"-D", path.String(), fmt.Sprintf("0x%x", binary.BigEndian.Uint16(request[offAttribute:])), fmt.Sprintf("0x%x", binary.BigEndian.Uint32(request[offModifier:])),
	}
	if d.options != "" {
		args = append([]string{"-z", d.options}, args...)
	}
	out, err := d.command(ctx, args...).Output()
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return MAD{}, ctx.Err()
	case errors.As(err, &failed):
		return MAD{}, fmt.Errorf("%w: %s", ErrUnreachable, strings.TrimSpace(string(failed.Stderr)))
	case err != nil:
		return MAD{}, fmt.Errorf("run smpdump: %w", err)
	}
	data, status, err := decodeDump(out)
	if err != nil {
		return MAD{}, err
	}
	answer := request
	answer[offMethod] |= responseBit
	binary.BigEndian.PutUint16(answer[offStatus:], status)
	copy(answer.subnData(), data)
	return answer, nil
}

// decodeDump reads the attribute as smpdump prints it: lines of hexadecimal words, and then the status. Where nothing answered, smpdump prints
// zeros and no status, and ends well: a table that could not be read would look empty.
func decodeDump(out []byte) (data []byte, status uint16, err error) {
	const statusLine = "SMP status:"
	body, after, answered := bytes.Cut(out, []byte(statusLine))
	if !answered {
		return nil, 0, fmt.Errorf("%w: smpdump tells no status", ErrUnreachable)
	}
	number, err := strconv.ParseUint(strings.TrimSpace(string(after)), 0, 16)
	if err != nil {
		return nil, 0, fmt.Errorf("read smpdump's status: %w", err)
	}
	data, err = hex.DecodeString(string(bytes.Join(bytes.Fields(body), nil)))
	if err == nil && len(data) != subnDataSize {
		err = fmt.Errorf("%d bytes, want %d", len(data), subnDataSize)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read smpdump's answer: %w", err)
	}
	return data, uint16(number), nil
}

// Close implements Transport.
func (d *diags) Close() error {
	if d.options == "" {
		return nil
	}
	return os.Remove(d.options)
}
