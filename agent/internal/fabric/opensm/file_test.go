package opensm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// drawFile draws a file in its written order.
func drawFile(t *rapid.T) file {
	var f file
	if rapid.Bool().Draw(t, "ours") {
		low := rapid.Uint16Range(1, 0x7ffe).Draw(t, "low")
		f.Header = &header{
			Epoch:   rapid.Int64Range(0, 1<<62).Draw(t, "epoch"),
			Managed: fabric.Range{Low: protocol.PKey(low), High: protocol.PKey(rapid.Uint16Range(low, 0x7ffe).Draw(t, "high"))},
		}
		for _, key := range rapid.SliceOfNDistinct(rapid.Uint16Range(1, 0x7ffe), 0, 3, rapid.ID[uint16]).Draw(t, "reserved") {
			f.Header.Managed.Reserved = append(f.Header.Managed.Reserved, protocol.PKey(key))
		}
	}
	keys := rapid.SliceOfNDistinct(rapid.Uint16Range(1, 0x7ffe), 0, 8, rapid.ID[uint16]).Draw(t, "keys")
	for _, key := range keys {
		p := partition{
			PKey: protocol.PKey(key), Name: fmt.Sprintf("lease-%04x", key),
			Index0: rapid.Bool().Draw(t, "index 0"), IPoIB: rapid.Bool().Draw(t, "ipoib"),
		}
		guids := rapid.SliceOfNDistinct(rapid.Uint64Min(1), 1, 40, rapid.ID[uint64]).Draw(t, "members")
		for _, guid := range guids {
			p.Members = append(p.Members, member{GUID: protocol.GUID(guid), Full: rapid.Bool().Draw(t, "full")})
		}
		f.Partitions = append(f.Partitions, p)
	}
	return f.normal()
}

func TestWhatIsWrittenIsReadBackTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := drawFile(t)
		text := f.text()
		again, err := parse(text)
		require.NoError(t, err)
		require.Equal(t, text, again.text())
		require.Equal(t, f.Header, again.Header)
		require.ElementsMatch(t, f.Partitions, again.Partitions)
		for line := range bytes.Lines(text) {
			require.Less(t, len(line), 200)
		}
	})
}

func TestAFileCutShortAnywhereIsRefused(t *testing.T) {
	t.Parallel()
	f := file{Header: &header{Epoch: 12, Managed: fabric.Range{Low: 1, High: 0x3fff}}, Partitions: []partition{
		{Name: "lease-a", PKey: 5, Index0: true, Members: []member{{0x0002c90000010001, true}, {0x0002c90000010101, true}}},
		{Name: "lease-b", PKey: 6, Index0: true, Members: []member{{0x0002c90000020001, true}}},
	}}
	text := f.text()
	for end := range text {
		cut, err := parse(text[:end])
		if err == nil {
			// Between two definitions nothing tells that one is missing; then the file is whole, and says less.
			require.True(t, bytes.HasSuffix(text[:end], []byte(";\n")))
			require.Less(t, len(cut.Partitions), len(f.Partitions))
		}
	}
}

func TestWhatOpenSMWouldMisreadIsRefused(t *testing.T) {
	t.Parallel()
	const head = "Default=0x7fff : ALL=limited, ALL_SWITCHES=full, SELF=full;\n"
	for name, text := range map[string]string{
		"an empty file":                     "",
		"only comments":                     "# nothing\n",
		"no rule for the default partition": "a-lease=0x0001, indx0 :\n 0x0002c90000010001=full;\n",
		"everybody full by default":         "Default=0x7fff : ALL=full;\n",
		"a default with IPoIB":              "Default=0x7fff, ipoib : ALL=limited, ALL_SWITCHES=full, SELF=full;\n",
		"a default twice":                   head + head,
		"a second default by key":           head + "other=0x7fff : ALL=full;\n",
		"a tenant in the default partition": head + "tenant=0x7fff :\n 0x0002c90000010001=full;\n",
		"a malformed GUID":                  head + "tenant=0x0001 :\n 0x0002c9000001000g=full;\n",
		"a GUID without 0x":                 head + "tenant=0x0001 :\n 0002c90000010001=full;\n",
		"a GUID cut short":                  head + "tenant=0x0001 :\n 0x0002c900000100=full;\n",
		"the GUID 0":                        head + "tenant=0x0001 :\n 0x0000000000000000=full;\n",
		"a membership cut short":            head + "tenant=0x0001 :\n 0x0002c90000010001=;\n",
		"a membership abbreviated":          head + "tenant=0x0001 :\n 0x0002c90000010001=ful;\n",
		"a membership left out":             head + "tenant=0x0001 :\n 0x0002c90000010001;\n",
		"both memberships":                  head + "tenant=0x0001 :\n 0x0002c90000010001=both;\n",
		"no semicolon":                      head + "tenant=0x0001 :\n 0x0002c90000010001=full\n",
		"no semicolon before the next":      head + "tenant=0x0001 :\n 0x0002c90000010001=full\nother=0x0002 :\n 0x0002c90000020001=full;\n",
		"a semicolon too many":              head + ";\n",
		"no colon":                          head + "tenant=0x0001\n 0x0002c90000010001=full;\n",
		"a head over two lines":             head + "tenant=0x0001,\n indx0 :\n 0x0002c90000010001=full;\n",
		"a member over two lines":           head + "tenant=0x0001 :\n 0x0002c90000010001\n=full;\n",
		"a key with the membership bit":     head + "tenant=0x8001 :\n 0x0002c90000010001=full;\n",
		"the key 0":                         head + "tenant=0x0000 :\n 0x0002c90000010001=full;\n",
		"a key of 17 bits":                  head + "tenant=0x18002 :\n 0x0002c90000010001=full;\n",
		"a key in decimal":                  head + "tenant=5 :\n 0x0002c90000010001=full;\n",
		"a key left out":                    head + "tenant :\n 0x0002c90000010001=full;\n",
		"a key used twice":                  head + "tenant=0x0001 :\n 0x0002c90000010001=full;\nother=0x0001 :\n 0x0002c90000020001=full;\n",
		"a name used twice":                 head + "tenant=0x0001 :\n 0x0002c90000010001=full;\ntenant=0x0002 :\n 0x0002c90000020001=full;\n",
		"no name":                           head + "=0x0001 :\n 0x0002c90000010001=full;\n",
		"a name that is a number":           head + "0x0002=0x0001 :\n 0x0002c90000010001=full;\n",
		"a keyword for a port":              head + "tenant=0x0001 :\n ALL=full;\n",
		"a keyword's prefix for a port":     head + "tenant=0x0001 :\n A=full;\n",
		"the manager for a port":            head + "tenant=0x0001 :\n SELF=full;\n",
		"a multicast group":                 head + "tenant=0x0001, ipoib :\n mgid=ff12:401b::0707,sl=1\n 0x0002c90000010001=full;\n",
		"a default membership":              head + "tenant=0x0001, defmember=full :\n 0x0002c90000010001=full;\n",
		"an unknown flag":                   head + "tenant=0x0001, index0 :\n 0x0002c90000010001=full;\n",
		"a flag twice":                      head + "tenant=0x0001, indx0, indx0 :\n 0x0002c90000010001=full;\n",
		"an empty flag":                     head + "tenant=0x0001, :\n 0x0002c90000010001=full;\n",
		"a port twice":                      head + "tenant=0x0001 :\n 0x0002c90000010001=full,\n 0x0002c90000010001=limited;\n",
		"no members":                        head + "tenant=0x0001 :\n;\n",
		"a comma at the end":                head + "tenant=0x0001 :\n 0x0002c90000010001=full,;\n",
		"a comma at the beginning":          head + "tenant=0x0001 :\n , 0x0002c90000010001=full;\n",
		"a comma too few":                   head + "tenant=0x0001 :\n 0x0002c90000010001=full\n 0x0002c90000020001=full;\n",
		"a line that does not end":          head + "tenant=0x0001 :\n 0x0002c90000010001=full;",
		"a line that is too long":           head + "tenant=0x0001 :\n 0x0002c90000010001=full; #" + strings.Repeat("x", 4096) + "\n",
		"a carriage return":                 strings.ReplaceAll(head, "\n", "\r\n"),
		"a zero byte":                       head + "tenant=0x0001 :\n 0x0002c90000010001=full;\x00\n",
		"a byte beyond ASCII":               head + "# é\n",
		"two headers":                       "# leasehold: epoch=1 managed=0x0001-0x7ffe\n# leasehold: epoch=2 managed=0x0001-0x7ffe\n" + head,
		"a header with another key":         "# leasehold: epoch=1\n" + head,
		"a header with a negative epoch":    "# leasehold: epoch=-1 managed=0x0001-0x7ffe\n" + head,
		"a header with a huge epoch":        "# leasehold: epoch=99999999999999999999 managed=0x0001-0x7ffe\n" + head,
	} {
		_, err := parse([]byte(text))
		require.Error(t, err, name)
		var at *parseError
		require.ErrorAs(t, err, &at, name)
	}
}

func TestAFileWrittenByHandInTheStrictFormIsRead(t *testing.T) {
	t.Parallel()
	f, err := parse([]byte("# the storage network\nDefault = 0x7fff:ALL=limited,ALL_SWITCHES=full,SELF=full;\n" +
		"Storage = 0x4001 , ipoib : 0x0002c90000010001=limited, 0x0002c90000020001=full; # both\n\nx=0x4002:0x0002c90000010001=full;\n"))
	require.NoError(t, err)
	require.Nil(t, f.Header)
	require.Equal(t, []partition{
		{Name: "Storage", PKey: 0x4001, IPoIB: true, Members: []member{{0x0002c90000010001, false}, {0x0002c90000020001, true}}},
		{Name: "x", PKey: 0x4002, Members: []member{{0x0002c90000010001, true}}},
	}, f.Partitions)
}

func TestForeignPartitionsStayAndOursAreReplaced(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before := drawFile(t)
		managed := fabric.Range{Low: 0x0100, High: 0x01ff}
		desired := fabric.Desired{Managed: managed, Partitions: []protocol.Partition{{PKey: 0x0123, Name: "next", Members: []protocol.GUID{9}}}}
		after := before.with(desired, 5)
		require.Equal(t, fabric.State{Desired: desired, Epoch: 5}, after.state())
		for _, p := range before.Partitions {
			ours := managed.Contains(p.PKey) || (before.Header != nil && before.Header.Managed.Contains(p.PKey))
			if ours {
				require.NotContains(t, after.Partitions, p)
			} else {
				require.Contains(t, after.Partitions, p)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(defaultRule))
	f.Add(file{Header: &header{Epoch: 3, Managed: fabric.Range{Low: 1, High: 0x7ffe}}, Partitions: []partition{
		{Name: "lease-a", PKey: 5, Index0: true, Members: []member{{0x0002c90000010001, true}, {0x0002c90000010101, false}}},
	}}.text())
	f.Add([]byte("Default=0x7fff : ALL=full;\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		read, err := parse(text)
		if err != nil {
			return
		}
		written := read.normal().text()
		again, err := parse(written)
		require.NoError(t, err)
		require.Equal(t, written, again.normal().text())
		require.Contains(t, string(text), "ALL_SWITCHES")
		for _, p := range read.Partitions {
			require.NotEmpty(t, p.Members)
			require.True(t, p.PKey >= protocol.FirstPartitionID && p.PKey <= protocol.LastPartitionID)
		}
	})
}
