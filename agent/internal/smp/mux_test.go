package smp

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/protocol"
)

// kernel is a stand-in for the kernel's side of a MAD device: it answers what its handler says.
type kernel struct{ device *os.File }

// verdict is what becomes of a request.
type verdict int

const (
	answered verdict = iota
	lost
	timedOut
)

// newKernel returns a transport over a socket pair and serves the other end until the test ends.
func newKernel(t *testing.T, config MuxConfig, handle func(agent uint32, to Address, request MAD) (MAD, verdict)) *Mux {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	mux := NewMux(ours, umadFraming{smiAgent: 3, saAgent: 4}, config)
	k := kernel{theirs}
	var served sync.WaitGroup
	served.Go(func() { k.serve(handle) })
	t.Cleanup(func() {
		require.NoError(t, mux.Close())
		require.NoError(t, theirs.Close())
		served.Wait()
	})
	return mux
}

func (k kernel) serve(handle func(uint32, Address, MAD) (MAD, verdict)) {
	frame := make([]byte, 1024)
	for {
		n, err := k.device.Read(frame)
		if err != nil || n == 0 {
			return
		}
		request := MAD(frame[umadHeaderSize:n])
		to := Address{
			LID: binary.BigEndian.Uint16(frame[umadLID:]), QPN: binary.BigEndian.Uint32(frame[umadQPN:]),
			QKey: binary.BigEndian.Uint32(frame[umadQKey:]),
		}
		answer, v := handle(binary.NativeEndian.Uint32(frame), to, request)
		switch v {
		case lost:
			continue
		case timedOut:
			binary.NativeEndian.PutUint32(frame[umadStatus:], uint32(unix.ETIMEDOUT))
			_, err = k.device.Write(frame[:umadMinimum])
		case answered:
			reply := append(make([]byte, umadHeaderSize), answer[:]...)
			// The kernel puts a number of its own into the high half of the transaction id.
			binary.BigEndian.PutUint32(reply[umadHeaderSize+offTID:], 0xabcd)
			_, err = k.device.Write(reply)
		}
		if err != nil {
			return
		}
	}
}

func reply(request MAD, status uint16, data ...byte) MAD {
	request[offMethod] |= responseBit
	binary.BigEndian.PutUint16(request[offStatus:], status|directionBit)
	copy(request.subnData(), data)
	return request
}

var patient = MuxConfig{Timeout: 20 * time.Second, Attempts: 1, Window: 8}

func TestRequestsGoToTheAgentOfTheirClass(t *testing.T) {
	t.Parallel()
	type sent struct {
		agent uint32
		to    Address
	}
	var got []sent
	client := NewClient(newKernel(t, patient, func(agent uint32, to Address, request MAD) (MAD, verdict) {
		got = append(got, sent{agent, to})
		answer := reply(request, 0)
		binary.BigEndian.PutUint16(answer[offStatus:], 0)
		return answer, answered
	}), 7)
	_, err := client.NodeInfo(t.Context(), Path{1, 2})
	require.NoError(t, err)
	_, err = client.HasPath(t.Context(), 9, 1, 2)
	require.NoError(t, err)
	require.Equal(t, []sent{{3, Address{LID: 0xffff}}, {4, Address{LID: 9, QPN: 1, QKey: 0x80010000}}}, got)
}

func TestADirectedRouteIsWrittenAsTheSpecificationHasIt(t *testing.T) {
	t.Parallel()
	var got MAD
	client := NewClient(newKernel(t, patient, func(_ uint32, _ Address, request MAD) (MAD, verdict) {
		got = request
		return reply(request, 0), answered
	}), 0x0102030405060708)
	_, err := client.PKeyTable(t.Context(), Path{6, 1, 31}, 5, 32)
	require.NoError(t, err)
	require.Equal(t, []byte{1, 0x81, 1, 1}, got[0:4], "version, class, class version, method")
	require.Equal(t, []byte{0, 3}, got[6:8], "hop pointer and count")
	require.Equal(t, []byte{0, 0x16}, got[16:18], "attribute")
	require.Equal(t, []byte{0, 5, 0, 0}, got[20:24], "modifier: switch port and block")
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8}, got[24:32], "M_Key")
	require.Equal(t, []byte{0xff, 0xff, 0xff, 0xff}, got[32:36], "permissive LIDs")
	require.Equal(t, []byte{0, 6, 1, 31, 0}, got[128:133], "initial path")
}

func TestEveryBlockOfATableIsRead(t *testing.T) {
	t.Parallel()
	client := NewClient(newKernel(t, patient, func(_ uint32, _ Address, request MAD) (MAD, verdict) {
		block := request[offModifier+3]
		return reply(request, 0, 0x80, block+1, 0, 0, 0x7f, 0xff), answered
	}), 0)
	keys, err := client.PKeyTable(t.Context(), Path{1}, 0, 65)
	require.NoError(t, err)
	require.Len(t, keys, 64+3, "an entry in the last block counts, and holes stay")
	require.Equal(t, []protocol.PKey{0x8001, 0, 0x7fff}, keys[:3])
	require.Equal(t, []protocol.PKey{0x8003, 0, 0x7fff}, keys[64:])
}

func TestWhatNobodyAnswersIsUnreachable(t *testing.T) {
	t.Parallel()
	client := NewClient(newKernel(t, patient, func(_ uint32, _ Address, request MAD) (MAD, verdict) {
		return request, timedOut
	}), 0)
	_, err := client.NodeInfo(t.Context(), Path{1})
	require.ErrorIs(t, err, ErrUnreachable)
}

func TestARefusalIsToldApartFromSilence(t *testing.T) {
	t.Parallel()
	client := NewClient(newKernel(t, patient, func(_ uint32, _ Address, request MAD) (MAD, verdict) {
		return reply(request, 7<<2), answered
	}), 0)
	_, err := client.NodeInfo(t.Context(), Path{1})
	var refused *StatusError
	require.ErrorAs(t, err, &refused)
	require.EqualValues(t, 7<<2, refused.Status)
}

func TestALostRequestIsSentAgain(t *testing.T) {
	t.Parallel()
	tries := 0
	client := NewClient(newKernel(t, MuxConfig{Timeout: time.Millisecond, Attempts: 1000, Window: 1}, func(_ uint32, _ Address, request MAD) (MAD, verdict) {
		if tries++; tries < 3 {
			return request, lost
		}
		return reply(request, 0), answered
	}), 0)
	_, err := client.NodeInfo(t.Context(), Path{1})
	require.NoError(t, err)
}

func TestManyCallersShareOneConnection(t *testing.T) {
	t.Parallel()
	client := NewClient(newKernel(t, patient, echoModifier), 0)
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			info, err := client.PortInfo(t.Context(), Path{byte(i)}, i)
			require.NoError(t, err)
			require.Equal(t, i, info.LID)
		})
	}
	group.Wait()
}

// echoModifier answers with the LID that is the request's modifier.
func echoModifier(_ uint32, _ Address, request MAD) (MAD, verdict) {
	data := make([]byte, subnDataSize)
	binary.BigEndian.PutUint16(data[16:], binary.BigEndian.Uint16(request[offModifier+2:]))
	return reply(request, 0, data...), answered
}

func TestClosingEndsExchangesUnderWay(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	transport := newKernel(t, patient, func(_ uint32, _ Address, request MAD) (MAD, verdict) {
		arrived <- struct{}{}
		return request, lost
	})
	ended := make(chan error, 1)
	go func() {
		_, err := NewClient(transport, 0).NodeInfo(t.Context(), Path{1})
		ended <- err
	}()
	<-arrived
	require.NoError(t, transport.Close())
	require.Error(t, <-ended)
	_, err := NewClient(transport, 0).NodeInfo(t.Context(), Path{1})
	require.ErrorIs(t, err, ErrClosed)
}

func TestAContextEndsAnExchange(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	client := NewClient(newKernel(t, patient, func(_ uint32, _ Address, request MAD) (MAD, verdict) {
		cancel()
		return request, lost
	}), 0)
	_, err := client.NodeInfo(ctx, Path{1})
	require.ErrorIs(t, err, context.Canceled)
}

func TestAPathTooLongIsRefused(t *testing.T) {
	t.Parallel()
	client := NewClient(newKernel(t, patient, func(_ uint32, _ Address, request MAD) (MAD, verdict) { return request, lost }), 0)
	_, err := client.NodeInfo(t.Context(), make(Path, MaxHops+1))
	require.ErrorContains(t, err, "64 hops")
}

func TestOpeningADeviceThatIsNotOneFails(t *testing.T) {
	t.Parallel()
	_, err := OpenUmad(os.DevNull)
	require.ErrorContains(t, err, "enable P_Key index")
	_, err = OpenUmad("/nonexistent/umad0")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzUnwrap(f *testing.F) {
	f.Add(make([]byte, umadHeaderSize+MADSize))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		mad, _, err := umadFraming{}.Unwrap(frame)
		if err != nil {
			require.Less(t, len(frame), umadMinimum)
			return
		}
		carried := frame[umadHeaderSize:min(len(frame), umadHeaderSize+MADSize)]
		require.Equal(t, carried, mad[:len(carried)])
	})
}
