package ufm

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// management is the default partition as UFM 6.19 lists it.
const management = `"0x7fff":{"guids":[],"index0":false,"ip_over_ib":true,"membership":"limited","partition":"management"}`

func TestAListOfPartitionsIsWholeAndUnambiguousOrUnknown(t *testing.T) {
	t.Parallel()
	got, err := decodePartitions([]byte(`{` + management + `,"0x2fb":{"partition":"api_pkey_0x2fb","ip_over_ib":true,"guids":[
		{"guid":"946dae03005975c8","index0":true,"membership":"full"},{"guid":"0x946dae03005975d0","index0":false,"membership":"limited"}]}}`))
	require.NoError(t, err)
	require.Equal(t, map[protocol.PKey]partition{
		0x7fff: {Default: limited, Members: map[protocol.GUID]entry{}},
		0x02fb: {Members: map[protocol.GUID]entry{0x946dae03005975c8: {full, true}, 0x946dae03005975d0: {limited, false}}},
	}, got)
	for name, wrong := range map[string]string{
		"nothing":                   `{}`,
		"null":                      `null`,
		"a list":                    `[]`,
		"no default partition":      `{"0x5":{"guids":[]}}`,
		"members not asked for":     `{` + management + `,"0x5":{"partition":"x"}}`,
		"a name twice":              `{` + management + `,"0x5":{"guids":[]},"0x5":{"guids":[]}}`,
		"a key twice":               `{` + management + `,"0x5":{"guids":[]},"0x0005":{"guids":[]}}`,
		"a key without 0x":          `{` + management + `,"5":{"guids":[]}}`,
		"key 0":                     `{` + management + `,"0x0":{"guids":[]}}`,
		"a key with membership bit": `{` + management + `,"0x8005":{"guids":[]}}`,
		"a member twice":            `{` + management + `,"0x5":{"guids":[{"guid":"946dae03005975c8","membership":"full"},{"guid":"946DAE03005975C8","membership":"full"}]}}`,
		"a short GUID":              `{` + management + `,"0x5":{"guids":[{"guid":"946dae","membership":"full"}]}}`,
		"GUID 0":                    `{` + management + `,"0x5":{"guids":[{"guid":"0000000000000000","membership":"full"}]}}`,
		"no membership":             `{` + management + `,"0x5":{"guids":[{"guid":"946dae03005975c8"}]}}`,
		"another membership":        `{` + management + `,"0x5":{"guids":[{"guid":"946dae03005975c8","membership":"both"}]}}`,
		"more after it":             `{` + management + `}{}`,
		"cut":                       `{` + management,
	} {
		_, err := decodePartitions([]byte(wrong))
		require.Error(t, err, name)
	}
}

func TestPortsAreReadAsUFMsGivesThem(t *testing.T) {
	t.Parallel()
	got, err := decodePorts([]byte(`[{"guid":"0002c90000010001","name":"0002c90000010000_1","systemID":"0002c90000010000","lid":"7","number":1,
		"logical_state":"Active","physical_state":"Link Up","active_speed":"NDR","active_width":"IB_4x","node_description":"n1 mlx5_0",
		"peer":"0002c90100000100_12","unheard_of":[1]},
		{"guid":"0002c90000020001","lid":8,"logical_state":"Initialize","peer_guid":"0002c90100000100","peer_port_dname":"13","system_name":"n2","dname":"HCA-1/1"},
		{"guid":"0002c90000030001","lid":null,"peer_node_guid":"0002c90100000100","peer_port_dname":"HCA-2/1"}]`))
	require.NoError(t, err)
	require.Equal(t, map[protocol.GUID]port{
		0x2c90000010001: {
			GUID: 0x2c90000010001, System: 0x2c90000010000, Name: "0002c90000010000_1", Description: "n1 mlx5_0", LID: 7, RateGbps: 400,
			Active: true, State: "Active, Link Up", Peer: end{0x2c90100000100, 12},
		},
		0x2c90000020001: {GUID: 0x2c90000020001, Description: "n2 HCA-1/1", LID: 8, State: "Initialize", Peer: end{0x2c90100000100, 13}},
		0x2c90000030001: {GUID: 0x2c90000030001},
	}, got)
	for _, wrong := range []string{`{}`, `null`, ``, `[{}]`, `[{"guid":"x"}]`, `[{"guid":"0002c90000010001"},{"guid":"0002c90000010001"}]`, `[`} {
		_, err := decodePorts([]byte(wrong))
		require.Error(t, err, wrong)
	}
}

func TestReleasesAreComparedAsNumbers(t *testing.T) {
	t.Parallel()
	for text, modern := range map[string]bool{"6.9.9": false, "6.10.0-2": true, "6.11.1-2": true, "7.0": true, "5.99": false, "lab": false, "6": false, "6.x": false} {
		v, err := decodeVersion([]byte(`{"ufm_release_version":"` + text + `"}`))
		require.NoError(t, err)
		require.Equal(t, modern, v.atLeast(setsSince.Major, setsSince.Minor), text)
	}
	for _, wrong := range []string{`{}`, `[]`, `{"ufm_release_version":""}`, `{"ufm_release_version":"` + strings.Repeat("9", 100) + `"}`} {
		_, err := decodeVersion([]byte(wrong))
		require.Error(t, err, wrong)
	}
}

func TestUFMsWordHasTheLeasesKeyAtIndexZeroOnlyIfUFMSaysSo(t *testing.T) {
	t.Parallel()
	const guid = protocol.GUID(1)
	word := func(defaults membership, members map[protocol.PKey]entry) ([]protocol.PKey, bool) {
		s := snapshot{partitions: map[protocol.PKey]partition{protocol.DefaultLimited: {Default: defaults}}}
		for key, m := range members {
			s.partitions[key] = partition{Members: map[protocol.GUID]entry{guid: m}}
		}
		return s.word(guid)
	}
	keys, known := word(limited, map[protocol.PKey]entry{5: {full, true}})
	require.True(t, known)
	require.Equal(t, []protocol.PKey{0x8005, 0x7fff}, keys)
	keys, known = word(limited, map[protocol.PKey]entry{5: {full, false}})
	require.True(t, known)
	require.Equal(t, []protocol.PKey{0x7fff, 0x8005}, keys)
	keys, known = word(full, nil)
	require.True(t, known)
	require.Equal(t, []protocol.PKey{0xffff}, keys)
	_, known = word(limited, map[protocol.PKey]entry{5: {full, true}, 6: {full, true}})
	require.False(t, known, "only one can be at index 0")
	_, known = word("", map[protocol.PKey]entry{5: {full, true}})
	require.False(t, known, "an old UFM does not say what the default partition is")
}

// applied is a snapshot after the steps, as UFM would take them.
func (s snapshot) applied(steps []step) snapshot {
	next := snapshot{partitions: maps.Clone(s.partitions)}
	for _, do := range steps {
		members := maps.Clone(next.partitions[do.key].Members)
		if members == nil || do.set != nil {
			members = map[protocol.GUID]entry{}
		}
		for _, guid := range do.remove {
			delete(members, guid)
		}
		for _, guid := range slices.Concat(do.set, do.add) {
			members[guid] = entry{full, true}
		}
		if len(members) == 0 {
			delete(next.partitions, do.key)
			continue
		}
		next.partitions[do.key] = partition{Members: members}
	}
	return next
}

func TestPlansEndAtTheSetTouchNothingElseAndNeverJoinTwoTenants(t *testing.T) {
	t.Parallel()
	managed := fabric.Range{Low: 1, High: 8, Reserved: []protocol.PKey{3}}
	rapid.Check(t, func(t *rapid.T) {
		s := snapshot{partitions: map[protocol.PKey]partition{protocol.DefaultLimited: {Default: limited, Members: map[protocol.GUID]entry{}}}}
		members := rapid.MapOfN(rapid.Custom(func(t *rapid.T) protocol.GUID { return protocol.GUID(rapid.Uint64Range(1, 6).Draw(t, "guid")) }),
			rapid.Custom(func(t *rapid.T) entry {
				return entry{rapid.SampledFrom([]membership{full, limited}).Draw(t, "membership"), rapid.Bool().Draw(t, "index0")}
			}), 1, 4)
		for _, key := range rapid.SliceOfNDistinct(rapid.Uint16Range(1, 12), 0, 6, rapid.ID).Draw(t, "keys") {
			s.partitions[protocol.PKey(key)] = partition{Members: members.Draw(t, "members")}
		}
		before := maps.Clone(s.partitions)
		desired := fabric.Desired{Managed: managed}
		wanted := map[protocol.GUID]protocol.PKey{}
		for guid := protocol.GUID(1); guid <= 6; guid++ {
			if key := protocol.PKey(rapid.Uint16Range(0, 8).Draw(t, "key of port")); managed.Contains(key) {
				wanted[guid] = key
			}
		}
		for key := managed.Low; key <= managed.High; key++ {
			var in []protocol.GUID
			for _, guid := range slices.Sorted(maps.Keys(wanted)) {
				if wanted[guid] == key {
					in = append(in, guid)
				}
			}
			if len(in) > 0 {
				desired.Partitions = append(desired.Partitions, protocol.Partition{PKey: key, Name: "x", Members: in})
			}
		}
		sets := rapid.Bool().Draw(t, "sets")
		for round := 0; ; round++ {
			require.LessOrEqual(t, round, 3, "it ends")
			steps := s.plan(desired, sets)
			if len(steps) == 0 {
				break
			}
			for _, do := range steps {
				require.True(t, managed.Contains(do.key), "%v is not ours", do.key)
				for _, guid := range slices.Concat(do.set, do.add) {
					for key, p := range s.partitions {
						_, still := p.Members[guid]
						require.False(t, still && managed.Contains(key) && key != do.key, "%v would be in %v and %v", guid, key, do.key)
					}
				}
			}
			s = s.applied(steps)
		}
		for key, p := range before {
			if !managed.Contains(key) {
				require.Equal(t, p, s.partitions[key], "foreign")
			}
		}
		for guid, key := range wanted {
			require.Equal(t, entry{full, true}, s.partitions[key].Members[guid])
		}
		for key, p := range s.partitions {
			for guid := range p.Members {
				require.True(t, !managed.Contains(key) || wanted[guid] == key, "%v is still in %v", guid, key)
			}
		}
	})
}

func FuzzAnswers(f *testing.F) {
	for _, seed := range []string{
		`{` + management + `}`, `{}`, `[]`, `null`, `[{"guid":"0002c90000010001","peer":"0002c90100000100_12","lid":"7"}]`, `{"ufm_release_version":"6.19.3-2"}`,
		`{"m_key":"0x10","m_key_per_port":true}`, `[{"source_guid":"0002c903007b78b0","source_port":"29","destination_guid":"0002c903007b78b1","destination_port":28}]`,
		`[{"guid":"0002c90100000100","type":"switch","ports":["a"]}]`, `{"0x5":{"guids":[{"guid":"946dae03005975c8","membership":"full"}]},` + management + `}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if partitions, err := decodePartitions(data); err == nil {
			require.Contains(t, partitions, protocol.DefaultLimited)
			s := snapshot{partitions: partitions}
			for key, p := range partitions {
				require.LessOrEqual(t, key, protocol.DefaultLimited)
				require.NotZero(t, key)
				for guid, m := range p.Members {
					require.NotZero(t, guid)
					require.Contains(t, []membership{full, limited}, m.Membership)
					keys, known := s.word(guid)
					require.True(t, !known || slices.Contains(keys, withMembership(key, m.Membership)), "what UFM says of a member is in its word")
				}
			}
			require.Empty(t, s.plan(fabric.Desired{Managed: fabric.Range{Low: 1, High: 0x7ffe, Reserved: slices.Collect(maps.Keys(partitions))}}, true))
		}
		if ports, err := decodePorts(data); err == nil {
			for guid, p := range ports {
				require.Equal(t, guid, p.GUID)
				require.True(t, p.Peer == end{} || p.Peer.Port >= 1 && p.Peer.Port <= 254)
			}
		}
		if links, err := decodeLinks(data); err == nil {
			for _, l := range links {
				require.NotZero(t, l.From.Node)
				require.NotZero(t, l.To.Port)
			}
		}
		if v, err := decodeVersion(data); err == nil {
			require.NotEmpty(t, v.Text)
		}
		if switches, err := decodeSwitches(data); err == nil {
			require.NotContains(t, switches, protocol.GUID(0))
		}
		if conf, err := decodeSMConf(data); err == nil {
			for _, check := range hardening(conf) {
				require.Contains(t, []protocol.Verdict{protocol.True, protocol.False, protocol.Unknown}, check.Verdict)
			}
		}
	})
}
