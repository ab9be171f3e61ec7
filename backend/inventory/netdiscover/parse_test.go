package netdiscover_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/inventory/netdiscover"
)

func read(t testing.TB, path ...string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return raw
}

func generator(t testing.TB, name string) []byte {
	t.Helper()
	return read(t, "..", "..", "..", "agent", "internal", "ibsim", "testdata", name)
}

// bare is the topology without what a netlist cannot say, and without the manager's own adapter, in the order of a graph.
func bare(t protocol.Topology) protocol.Topology {
	t.Ports = slices.DeleteFunc(slices.Clone(t.Ports), func(p protocol.TopologyPort) bool { return p.Description == "sm" })
	t.Switches, t.Links = slices.Clone(t.Switches), slices.Clone(t.Links)
	for i := range t.Switches {
		t.Switches[i].Level, t.Switches[i].Pod, t.Switches[i].Ports = 0, "", 0
	}
	for i := range t.Links {
		l := &t.Links[i]
		if l.ToGUID < l.FromGUID {
			l.FromGUID, l.ToGUID, l.FromPort, l.ToPort = l.ToGUID, l.FromGUID, l.ToPort, l.FromPort
		}
		l.RateGbps, l.Width = 0, ""
	}
	for i := range t.Ports {
		t.Ports[i].LID, t.Ports[i].RateGbps = 0, 0
	}
	slices.SortFunc(t.Switches, func(a, b protocol.Switch) int { return cmp.Compare(a.GUID, b.GUID) })
	slices.SortFunc(t.Links, func(a, b protocol.Link) int {
		return cmp.Or(cmp.Compare(a.FromGUID, b.FromGUID), cmp.Compare(a.FromPort, b.FromPort))
	})
	slices.SortFunc(t.Ports, func(a, b protocol.TopologyPort) int { return cmp.Compare(a.GUID, b.GUID) })
	return t
}

func TestANetlistOfTheSimulatorsGeneratorIsTheTopologyItWasMadeOf(t *testing.T) {
	t.Parallel()
	var want protocol.Topology
	require.NoError(t, json.Unmarshal(generator(t, "fat-tree.json"), &want))
	graph, err := netdiscover.Parse(generator(t, "fat-tree.netlist"))
	require.NoError(t, err)
	require.Equal(t, netdiscover.Netlist, graph.Format)
	require.Equal(t, bare(want), bare(graph.Topology()))
}

func TestWhatIbnetdiscoverPrintsOfThatNetlistIsTheSameTopology(t *testing.T) {
	t.Parallel()
	var want protocol.Topology
	require.NoError(t, json.Unmarshal(generator(t, "fat-tree.json"), &want))
	for _, name := range []string{"fat-tree", "fat-tree-full", "fat-tree-grouped"} {
		graph, err := netdiscover.Parse(read(t, "testdata", name+".ibnetdiscover"))
		require.NoError(t, err, name)
		require.Equal(t, netdiscover.Ibnetdiscover, graph.Format)
		got := graph.Topology()
		require.Equal(t, bare(want), bare(got), name)
		for _, p := range got.Ports {
			require.Equal(t, 10, p.RateGbps)
			require.NotZero(t, p.LID)
		}
		for _, l := range got.Links {
			require.Equal(t, "4X 10", fmt.Sprint(l.Width, " ", l.RateGbps))
		}
	}
}

func TestTheOdditiesOfRealClustersAreRead(t *testing.T) {
	t.Parallel()
	graph, err := netdiscover.Parse(read(t, "testdata", "oddities.ibnetdiscover"))
	require.NoError(t, err)
	require.Equal(t, []int{3, 7, 1}, []int{graph.Count(netdiscover.Switch), graph.Count(netdiscover.HCA), graph.Count(netdiscover.Router)})
	require.Len(t, graph.Cables, 9)
	names := map[protocol.GUID]string{}
	aggregation := []protocol.GUID{}
	for _, d := range graph.Devices {
		names[d.GUID] = d.Name
		if d.Aggregation {
			aggregation = append(aggregation, d.GUID)
		}
	}
	require.Equal(t, "leaf-1", names[0xbb000000000100])
	require.Equal(t, "leaf-2/L01/U1", names[0xbb000000000200], "a chassis' switch is told from the others in it")
	require.Equal(t, "SwitchX -  Mellanox Technologies", names[0xcc000000000200])
	require.Equal(t, `the "odd" one # 2 "`, names[0xaa000000020000])
	require.Equal(t, "H-00bb000000000210", names[0xbb000000000210], "what says nothing of itself has the file's name")
	require.Equal(t, []protocol.GUID{0xbb000000000110, 0xbb000000000210}, aggregation, "by name, or by the box that it is in")

	topology := graph.Topology()
	require.Equal(t, []protocol.Link{
		{FromGUID: 0xbb000000000100, FromPort: 33, ToGUID: 0xcc000000000200, ToPort: 1, RateGbps: 400, Width: "4X"},
		{FromGUID: 0xbb000000000200, FromPort: 33, ToGUID: 0xcc000000000200, ToPort: 2, RateGbps: 200, Width: "4X"},
	}, topology.Links)
	require.Equal(t, []protocol.TopologyPort{
		{GUID: 0xaa000000010001, NodeGUID: 0xaa000000010000, Description: "node-1 mlx5_0", LID: 7, SwitchGUID: 0xbb000000000100, SwitchPort: 1, RateGbps: 400},
		{GUID: 0xaa000000010101, NodeGUID: 0xaa000000010100, Description: "node-1 mlx5_1", LID: 8, SwitchGUID: 0xbb000000000200, SwitchPort: 1, RateGbps: 200},
		{GUID: 0xaa000000020002, NodeGUID: 0xaa000000020000, Description: `the "odd" one # 2 "`, LID: 9, SwitchGUID: 0xbb000000000100, SwitchPort: 2, RateGbps: 400},
		{GUID: 0xaa000000030001, NodeGUID: 0xaa000000030000, Description: "node-3 mlx5_0", LID: 40, RateGbps: 2},
		{GUID: 0xaa000000040001, NodeGUID: 0xaa000000040000, Description: "node-4 mlx5_0", LID: 41, RateGbps: 2},
		{GUID: 0xbb000000000110, NodeGUID: 0xbb000000000110, Description: "Mellanox Technologies Aggregation Node", LID: 30, SwitchGUID: 0xbb000000000100, SwitchPort: 65, RateGbps: 400},
		{GUID: 0xbb000000000210, NodeGUID: 0xbb000000000210, Description: "H-00bb000000000210", LID: 31, SwitchGUID: 0xbb000000000200, SwitchPort: 40},
	}, topology.Ports)
}

const lists = `switchguid=0x100
Switch 4 "leaf"
[1] "n1"[1]
[2] "n2"[2]
[3] "spine"[1] w=12

switchguid=0x200
Switch 2 "spine"
[1] "leaf"[3]

caguid=0x10
Hca 1 "n1"
[1] "leaf"[1]

caguid=0x20
Hca 2 "n2"
[2](0x99) "leaf"[2]
`

func TestANetlistMayHaveACableAtOneEndOnly(t *testing.T) {
	t.Parallel()
	both, err := netdiscover.Parse([]byte(lists))
	require.NoError(t, err)
	require.Equal(t, protocol.GUID(0x11), both.Topology().Ports[0].GUID, "the simulator's numbering")
	require.Equal(t, protocol.GUID(0x99), both.Topology().Ports[1].GUID, "unless the file says it")
	require.Equal(t, "12X", both.Topology().Links[0].Width)
	for _, one := range []string{"[1] \"n1\"[1]\n", "[3] \"spine\"[1] w=12\n", "[1] \"leaf\"[3]\n", "[1] \"leaf\"[1]\n"} {
		graph, err := netdiscover.Parse([]byte(strings.Replace(lists, one, "", 1)))
		require.NoError(t, err, one)
		require.Equal(t, bare(both.Topology()), bare(graph.Topology()), one)
	}
}

func TestADefectiveNetlistIsRefusedWithLineAndReason(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string][2]string{
		`line 8: GUID 0x0000000000000100 is that of line 2 as well`:                                {"switchguid=0x200", "switchguid=0x100"},
		`line 8: "leaf" is the name of line 2 as well`:                                             {`2 "spine"`, `2 "leaf"`},
		`line 3: "leaf"[1] is cabled to "n9", which the file does not describe: it may be cut off`: {`"n1"[1]`, `"n9"[1]`},
		`line 5: "leaf"[3] is cabled to "leaf" itself`:                                             {`"spine"[1] w=12`, `"leaf"[2]`},
		`line 3: port 5 of "leaf", which has 4`:                                                    {"[1] \"n1\"", "[5] \"n1\""},
		`line 3: "leaf"[1] is cabled to port 2 of "n1", which has 1`:                               {`"n1"[1]`, `"n1"[2]`},
		`line 3: "0" is no port: 1 to 254`:                                                         {"[1] \"n1\"", "[0] \"n1\""},
		`line 4: port 1 of "leaf" is cabled already (line 3)`:                                      {`[2] "n2"`, `[1] "n2"`},
		`line 4: "leaf"[2] is cabled to "n1"[1], which is cabled to "leaf"[1] (line 13)`:           {`[2] "n2"[2]`, `[2] "n1"[1]`},
		`line 2: "256" is no number of ports: 1 to 254`:                                            {"Switch 4", "Switch 256"},
		`line 2: "x" is no number of ports: 1 to 254`:                                              {"Switch 4", "Switch x"},
		`line 1: switchguid: "100" is no number of 0x and hex digits`:                              {"switchguid=0x100", "switchguid=100"},
		`line 1: switchguid: "0x11112222333344445" is no number of 0x and at most 16 hex digits`:   {"switchguid=0x100", "switchguid=0x11112222333344445"},
		`line 1: switchguid: zero is no GUID`:                                                      {"switchguid=0x100", "switchguid=0x0"},
		`line 12: Hca "n1" has no caguid before it`:                                                {"caguid=0x10\n", "\n"},
		`line 12: Hca "n1" has a switchguid before it (line 11)`:                                   {"caguid=0x10\n", "switchguid=0x10\n"},
		`line 2: a second GUID, after that of line 1, before any block`:                            {"Switch 4", "switchguid=0x101\nSwitch 4"},
		`line 1: "module" is not an attribute that is known here`:                                  {"switchguid=0x100", "module=0x100"},
		`line 17: port GUID 0x0000000000000011 is that of a port of "n1" as well`:                  {"0x99", "0x11"},
		`line 17: "0xzz" is no number of 0x and at most 16 hex digits`:                             {"0x99", "0xzz"},
		`line 5: "w=3" is not an option that is known here`:                                        {"w=12", "w=3"},
		`line 3: "[1] \"n1\"[1" is no line of a topology: malformed, or cut off`:                   {`[1] "n1"[1]`, `[1] "n1"[1`},
		`line 2: "Swich 4 \"leaf\"" is no line of a topology: malformed, or cut off`:               {"Switch 4", "Swich 4"},
		`line 2: the device has no name`:                                                           {`"leaf"`, `""`},
		`line 2: "lead" does not belong behind a device's name`:                                    {`4 "leaf"`, `4 "leaf" lead`},
		`line 1: a port without a device before it`:                                                {"switchguid=0x100", `[1] "a"[1]`},
		`line 3: the line has the character NUL: this is no text`:                                  {`"n1"[1]`, "\"n1\"[1]\x00"},
	} {
		require.Contains(t, lists, edit[0])
		_, err := netdiscover.Parse([]byte(strings.Replace(lists, edit[0], edit[1], 1)))
		require.ErrorContains(t, err, want)
	}
	_, err := netdiscover.Parse([]byte("# nothing\n"))
	require.EqualError(t, err, "the file describes no device")
	_, err = netdiscover.Parse([]byte(lists + "caguid=0x30\n"))
	require.ErrorContains(t, err, "line 18: no device follows its GUID: the file is cut off")
	_, err = netdiscover.Parse([]byte(strings.Repeat("nonsense\n", 100)))
	var defects netdiscover.Defects
	require.ErrorAs(t, err, &defects)
	require.Len(t, defects, 20, "a file that is something else is not described line by line")
	_, err = netdiscover.Parse([]byte("# " + strings.Repeat("x", 5000)))
	require.EqualError(t, err, "line 1: the line is longer than 4096 bytes")
}

func TestADefectiveDiscoveryIsRefusedWithLineAndReason(t *testing.T) {
	t.Parallel()
	good := string(read(t, "testdata", "oddities.ibnetdiscover"))
	line := func(part string) int { return strings.Count(good[:strings.Index(good, part)], "\n") + 1 }
	backLine := "[1](aa000000010001) \t\"S-00bb000000000100\"[1]"
	for name, c := range map[string]struct{ old, new, want string }{
		"an end is left out": {
			"[2]\t\"S-00bb000000000200\"[33]", "# [2]\t\"S-00bb000000000200\"[33]",
			`"S-00bb000000000200"[33] is cabled to "S-00cc000000000200"[2], and the block of that (line 15) does not say so`,
		},
		"ends disagree": {
			"[33]\t\"S-00cc000000000200\"[2]", "[33]\t\"S-00cc000000000200\"[1]",
			`"S-00bb000000000200"[33] is cabled to "S-00cc000000000200"[1], which is cabled to "S-00bb000000000100"[33] (line 16)`,
		},
		"port GUIDs disagree": {
			backLine, strings.Replace(backLine, "010001)", "01ffff)", 1),
			fmt.Sprintf(`line %d: port 1 of "H-00aa000000010000" has GUID 0x00aa00000001ffff, and line 26 says 0x00aa000000010001`, line(backLine)),
		},
		"a port GUID is missing": {backLine, strings.Replace(backLine, "(aa000000010001)", "", 1), fmt.Sprintf(`line %d: port 1 of "H-00aa000000010000" has no GUID`, line(backLine))},
		"a name is not the GUID's": {
			"Ca\t1 \"H-00aa000000030000\"", "Ca\t1 \"H-00aa00000003000\"",
			`"H-00aa00000003000" is not what a hca with GUID 0x00aa000000030000 is called: "H-00aa000000030000"`,
		},
		"a speed is cut off":  {"lid 7 4xNDR", "lid 7 4xND", `line 26: "ND" is no speed that is known here`},
		"a remark is cut off": {"\"MF0;leaf-1:MQM9700/U1\" enhanced port 0 lid 3 lmc 0", "\"MF0;leaf-1:MQM97", `line 25: the remark "\"MF0;leaf-1:MQM97" is not one that ibnetdiscover writes, or is cut off`},
		"a LID is too large":  {"# lid 7 lmc", "# lid 70000 lmc", "lid 70000 is larger than any"},
		"a switch port has a GUID": {
			"\"S-00bb000000000100\"[2]\t", "\"S-00bb000000000100\"[2](bb000000000102)\t", `port 2 of switch "S-00bb000000000100" has a GUID`,
		},
		"a vendor is no number": {"vendid=0x8f1", "vendid=acme", `vendid: "acme" is no number of 0x and hex digits`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Contains(t, good, c.old)
			_, err := netdiscover.Parse([]byte(strings.Replace(good, c.old, c.new, 1)))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestADiscoveryThatIsCutOffAnywhereIsNeverAnotherGraph(t *testing.T) {
	t.Parallel()
	whole := read(t, "testdata", "oddities.ibnetdiscover")
	want, err := netdiscover.Parse(whole)
	require.NoError(t, err)
	for cut := range whole {
		if got, err := netdiscover.Parse(whole[:cut]); err == nil {
			require.Equal(t, bare(want.Topology()), bare(got.Topology()), "cut at byte %d", cut)
		}
	}
}

// random makes a topology of some switches with some of everything.
func random(r *rapid.T) protocol.Topology {
	var t protocol.Topology
	switches := rapid.IntRange(1, 5).Draw(r, "switches")
	next := make([]int, switches)
	for i := range switches {
		t.Switches = append(t.Switches, protocol.Switch{GUID: protocol.GUID(0x1000 * (i + 1)), Name: fmt.Sprintf("s%d", i)})
	}
	plug := func(s int) int {
		next[s]++
		return next[s]
	}
	for range rapid.IntRange(0, 12).Draw(r, "links") {
		a, b := rapid.IntRange(0, switches-1).Draw(r, "a"), rapid.IntRange(0, switches-1).Draw(r, "b")
		if a != b {
			t.Links = append(t.Links, protocol.Link{FromGUID: t.Switches[a].GUID, FromPort: plug(a), ToGUID: t.Switches[b].GUID, ToPort: plug(b)})
		}
	}
	for i := range switches + rapid.IntRange(0, 12).Draw(r, "hosts") {
		s, guid := i, protocol.GUID(0x100000*(i+1))
		if i >= switches { // nothing is discovered without a cable
			s = rapid.IntRange(0, switches-1).Draw(r, "on")
		}
		t.Ports = append(t.Ports, protocol.TopologyPort{GUID: guid + 1, NodeGUID: guid, Description: fmt.Sprintf("h%d", i), SwitchGUID: t.Switches[s].GUID, SwitchPort: plug(s)})
	}
	return t
}

// write is the topology in the form of ibnetdiscover.
func write(t protocol.Topology) string {
	var out strings.Builder
	for _, s := range t.Switches {
		fmt.Fprintf(&out, "\nvendid=0x2c9\ndevid=0x1\nsysimgguid=%v\nswitchguid=%v(%x)\nSwitch\t64 \"S-%016x\"\t\t# %q enhanced port 0 lid 1 lmc 0\n", s.GUID, s.GUID, uint64(s.GUID), uint64(s.GUID), s.Name)
		for _, l := range t.Links {
			for _, e := range [][4]uint64{
				{uint64(l.FromGUID), uint64(l.FromPort), uint64(l.ToGUID), uint64(l.ToPort)}, //nolint:gosec // small
				{uint64(l.ToGUID), uint64(l.ToPort), uint64(l.FromGUID), uint64(l.FromPort)}, //nolint:gosec // small
			} {
				if e[0] == uint64(s.GUID) {
					fmt.Fprintf(&out, "[%d]\t\"S-%016x\"[%d]\t\t# \"x\" lid 2 4xNDR\n", e[1], e[2], e[3])
				}
			}
		}
		for _, p := range t.Ports {
			if p.SwitchGUID == s.GUID {
				fmt.Fprintf(&out, "[%d]\t\"H-%016x\"[1](%x) \t\t# %q lid 2 4xNDR\n", p.SwitchPort, uint64(p.NodeGUID), uint64(p.GUID), p.Description)
			}
		}
	}
	for _, p := range t.Ports {
		fmt.Fprintf(&out, "\nvendid=0x2c9\ndevid=0x1\ncaguid=0x%x\nCa\t1 \"H-%016x\"\t\t# %q\n[1](%x) \t\"S-%016x\"[%d]\t\t# lid 2 lmc 0 \"x\" lid 1 4xNDR\n",
			uint64(p.NodeGUID), uint64(p.NodeGUID), p.Description, uint64(p.GUID), uint64(p.SwitchGUID), p.SwitchPort)
	}
	return out.String()
}

func TestWhateverIsWrittenIsReadAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		want := random(r)
		graph, err := netdiscover.Parse([]byte(write(want)))
		require.NoError(r, err)
		want = bare(want)
		got := bare(graph.Topology())
		require.ElementsMatch(r, want.Switches, got.Switches)
		require.ElementsMatch(r, want.Links, got.Links)
		require.ElementsMatch(r, want.Ports, got.Ports)
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(lists))
	f.Add(generator(f, "fat-tree.netlist"))
	f.Add(read(f, "testdata", "oddities.ibnetdiscover"))
	f.Add(read(f, "testdata", "fat-tree-grouped.ibnetdiscover"))
	f.Fuzz(func(t *testing.T, file []byte) {
		graph, err := netdiscover.Parse(file)
		if err != nil {
			var defects netdiscover.Defects
			require.ErrorAs(t, err, &defects)
			require.NotEmpty(t, defects)
			require.Empty(t, graph.Devices, "nothing by halves")
			return
		}
		// Whatever is accepted is a graph: every device once, every port once, every cable between two ports that exist.
		ports := map[protocol.GUID]int{}
		for _, d := range graph.Devices {
			require.NotContains(t, ports, d.GUID)
			require.NotZero(t, d.GUID)
			ports[d.GUID] = d.Ports
		}
		used := map[netdiscover.End]bool{}
		for _, c := range graph.Cables {
			require.Less(t, c.A.GUID, c.B.GUID)
			for _, end := range []netdiscover.End{c.A, c.B} {
				require.False(t, used[end])
				require.True(t, end.Port >= 1 && end.Port <= ports[end.GUID])
				used[end] = true
			}
		}
		guids := map[protocol.GUID]bool{}
		for _, p := range graph.Topology().Ports {
			require.False(t, guids[p.GUID])
			guids[p.GUID] = true
		}
	})
}

// Real clusters' files are not part of this project; where they lie beside it they are tried.
func TestARealClustersFileIsRead(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("..", "..", "..", "..", "shared", "data", "ibnetdiscover", "*"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("no real cluster's ibnetdiscover file at hand (../shared/data/ibnetdiscover)")
	}
	for _, file := range files {
		raw := read(t, file)
		graph, err := netdiscover.Parse(raw)
		require.NoError(t, err, file)
		text := "\n" + string(raw)
		require.Equal(t, strings.Count(text, "\nSwitch\t"), graph.Count(netdiscover.Switch))
		require.Equal(t, strings.Count(text, "\nCa\t"), graph.Count(netdiscover.HCA))
		require.Equal(t, strings.Count(text, "\n["), 2*len(graph.Cables), "every cable is there at both ends")
	}
}
