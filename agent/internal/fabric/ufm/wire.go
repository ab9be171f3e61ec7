package ufm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// membership is UFM's word for full or limited.
type membership string

const (
	full    membership = "full"
	limited membership = "limited"
)

// partition is one PKey as UFM lists it.
type partition struct {
	// Default is what ports are in it without being listed: said of the default partition only, by UFM 6.19 and later.
	Default membership
	Members map[protocol.GUID]entry
}

// entry is one member.
type entry struct {
	Membership membership
	Index0     bool
}

// partitionJSON is the wire form, of GET resources/pkeys?guids_data=true.
type partitionJSON struct {
	Membership membership `json:"membership"`
	GUIDs      *[]struct {
		GUID       string     `json:"guid"`
		Membership membership `json:"membership"`
		Index0     bool       `json:"index0"`
	} `json:"guids"`
}

// decodePartitions reads the list of all PKeys with their members. UFM has the default partition always, and lists it: an answer
// without it ({} among them, which is how UFM says that a thing does not exist) is not the whole list.
func decodePartitions(data []byte) (map[protocol.PKey]partition, error) {
	raw, err := object(data)
	if err != nil {
		return nil, fmt.Errorf("decode PKeys: %w", err)
	}
	partitions := make(map[protocol.PKey]partition, len(raw))
	for name, text := range raw {
		key, err := decodeKey(name)
		if err != nil {
			return nil, fmt.Errorf("decode PKeys: %w", err)
		}
		if _, twice := partitions[key]; twice {
			return nil, fmt.Errorf("decode PKeys: %v is listed twice", key)
		}
		if partitions[key], err = decodePartition(text); err != nil {
			return nil, fmt.Errorf("decode PKey %v: %w", key, err)
		}
	}
	if _, there := partitions[protocol.DefaultLimited]; !there {
		return nil, fmt.Errorf("decode PKeys: the default partition is missing: %w", errPartial)
	}
	return partitions, nil
}

func decodePartition(data []byte) (partition, error) {
	var wire partitionJSON
	if err := json.Unmarshal(data, &wire); err != nil {
		return partition{}, err
	}
	if wire.GUIDs == nil {
		return partition{}, fmt.Errorf("no members are listed: %w", errPartial)
	}
	if wire.Membership != "" && wire.Membership != full && wire.Membership != limited {
		return partition{}, fmt.Errorf("membership %q", wire.Membership)
	}
	p := partition{Default: wire.Membership, Members: make(map[protocol.GUID]entry, len(*wire.GUIDs))}
	for _, m := range *wire.GUIDs {
		guid, err := decodeGUID(m.GUID)
		if err != nil {
			return partition{}, err
		}
		if m.Membership != full && m.Membership != limited {
			return partition{}, fmt.Errorf("%v has membership %q", guid, m.Membership)
		}
		if _, twice := p.Members[guid]; twice {
			return partition{}, fmt.Errorf("%v is listed twice", guid)
		}
		p.Members[guid] = entry{Membership: m.Membership, Index0: m.Index0}
	}
	return p, nil
}

// isNothing reports whether the answer is how UFM says with a success that a thing does not exist.
func isNothing(data []byte) bool {
	raw, err := object(data)
	return err == nil && len(raw) == 0
}

// object splits a JSON object and refuses names that occur twice, of which encoding/json would take the last.
func object(data []byte) (map[string]json.RawMessage, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	start, err := decoder.Token()
	if err != nil || start != json.Delim('{') {
		return nil, errors.New("not a JSON object")
	}
	fields := map[string]json.RawMessage{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		name, isName := token.(string)
		if _, twice := fields[name]; twice || !isName {
			return nil, fmt.Errorf("%q is there twice", name)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		fields[name] = value
	}
	if _, err := decoder.Token(); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, errors.New("more than one JSON value")
	}
	return fields, nil
}

// decodeKey reads a partition's number, e.g. 0x12. UFM's have no membership bit.
func decodeKey(s string) (protocol.PKey, error) {
	digits, isHex := strings.CutPrefix(strings.ToLower(s), "0x")
	key, err := strconv.ParseUint(digits, 16, 16)
	if !isHex || err != nil || key == 0 || key > uint64(protocol.DefaultLimited) {
		return 0, fmt.Errorf("%q is no PKey", s)
	}
	return protocol.PKey(key), nil
}

// encodeKey writes a key as UFM lists it.
func encodeKey(key protocol.PKey) string { return fmt.Sprintf("%#x", uint16(key.Base())) }

// decodeGUID reads 16 hex digits, as UFM writes GUIDs; 0x before them is accepted.
func decodeGUID(s string) (protocol.GUID, error) {
	digits := strings.TrimPrefix(strings.ToLower(s), "0x")
	guid, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || len(digits) != 16 || guid == 0 {
		return 0, fmt.Errorf("%q is no GUID", s)
	}
	return protocol.GUID(guid), nil
}

func encodeGUID(guid protocol.GUID) string { return fmt.Sprintf("%016x", uint64(guid)) }

func encodeGUIDs(guids []protocol.GUID) []string {
	texts := make([]string, len(guids))
	for i, guid := range guids {
		texts[i] = encodeGUID(guid)
	}
	return texts
}

// version is UFM's release.
type version struct {
	Major, Minor int
	Text         string
}

// decodeVersion reads GET app/ufm_version. A release that cannot be read as numbers keeps its text and counts as an old one.
func decodeVersion(data []byte) (version, error) {
	var wire struct {
		Release string `json:"ufm_release_version"`
	}
	if err := json.Unmarshal(data, &wire); err != nil {
		return version{}, fmt.Errorf("decode version: %w", err)
	}
	if wire.Release == "" || len(wire.Release) > 64 {
		return version{}, fmt.Errorf("decode version: %w", errPartial)
	}
	v := version{Text: wire.Release}
	parts := strings.SplitN(wire.Release, ".", 3)
	if len(parts) < 2 {
		return v, nil
	}
	major, errMajor := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(parts[1])
	if errMajor == nil && errMinor == nil {
		v.Major, v.Minor = major, minor
	}
	return v, nil
}

func (v version) atLeast(major, minor int) bool {
	return v.Major > major || (v.Major == major && v.Minor >= minor)
}

// smconf is GET app/smconf: the subnet manager's options, of which only a few are documented.
type smconf map[string]json.RawMessage

func decodeSMConf(data []byte) (smconf, error) {
	fields, err := object(data)
	if err != nil {
		return nil, fmt.Errorf("decode subnet manager's options: %w", err)
	}
	if len(fields) == 0 {
		return nil, fmt.Errorf("decode subnet manager's options: %w", errPartial)
	}
	return fields, nil
}

// number reads an option, hexadecimal or decimal, as a string or a number. Errors do not hold the value: it may be a key.
func (s smconf) number(name string) (uint64, bool) {
	text, err := strconv.Unquote(string(s[name]))
	if err != nil {
		text = string(s[name])
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 0, 64)
	return n, err == nil
}

// flag reads an option that is on or off.
func (s smconf) flag(name string) (on, known bool) {
	text := strings.ToLower(strings.Trim(string(s[name]), `" `))
	return text == "true", text == "true" || text == "false"
}
