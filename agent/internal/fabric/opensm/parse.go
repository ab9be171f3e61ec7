package opensm

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// parseError says where a partitions.conf leaves the strict form.
type parseError struct {
	Line   int
	Detail string
}

// Error implements error.
func (e *parseError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Detail) }

// parse reads a partitions.conf of the strict form. It goes line by line, as OpenSM does, and refuses whatever OpenSM would
// read in another way than it looks, ignore, or fail on.
func parse(text []byte) (file, error) {
	p := parser{keys: map[protocol.PKey]bool{}, names: map[string]bool{}}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		return file{}, &parseError{bytes.Count(text, []byte("\n")) + 1, "the last line does not end"}
	}
	for line := range bytes.Lines(text) {
		p.line++
		if err := p.read(string(line)); err != nil {
			return file{}, &parseError{p.line, err.Error()}
		}
	}
	switch {
	case p.open:
		return file{}, &parseError{p.line, "a definition does not end with a semicolon"}
	case !p.seenDefault:
		return file{}, &parseError{p.line, "there is no rule for the default partition"}
	}
	return p.file, nil
}

type parser struct {
	file        file
	line        int
	open        bool // within a definition
	isDefault   bool // of the default partition
	seenDefault bool
	current     partition
	defaults    []string // members of the default partition, as written
	needMember  bool     // after a comma
	needComma   bool     // after a member
	keys        map[protocol.PKey]bool
	names       map[string]bool
}

func (p *parser) read(line string) error {
	if len(line) >= maxLine {
		return fmt.Errorf("%d bytes, less than %d are read as one line", len(line), maxLine)
	}
	line = strings.TrimSuffix(line, "\n")
	for i := range len(line) {
		if c := line[i]; c != '\t' && (c < ' ' || c > '~') {
			return fmt.Errorf("byte 0x%02x", c)
		}
	}
	if strings.HasPrefix(line, headerPrefix) {
		return p.readHeader(line)
	}
	line, _, _ = strings.Cut(line, "#")
	for {
		segment, rest, ended := strings.Cut(line, ";")
		if err := p.segment(segment, ended); err != nil {
			return err
		}
		if !ended {
			return nil
		}
		line = rest
	}
}

func (p *parser) readHeader(line string) error {
	if p.file.Header != nil {
		return fmt.Errorf("a second header")
	}
	found := headerForm().FindStringSubmatch(line)
	if found == nil {
		return fmt.Errorf("malformed header")
	}
	epoch, err := strconv.ParseInt(found[1], 10, 64)
	if err != nil {
		return fmt.Errorf("epoch of header: %w", err)
	}
	h := header{Epoch: epoch}
	if err := h.Managed.Low.UnmarshalText([]byte(found[2])); err != nil {
		return err
	}
	if err := h.Managed.High.UnmarshalText([]byte(found[3])); err != nil {
		return err
	}
	if found[4] != "" {
		for word := range strings.SplitSeq(found[4], ",") {
			var key protocol.PKey
			if err := key.UnmarshalText([]byte(word)); err != nil {
				return err
			}
			h.Managed.Reserved = append(h.Managed.Reserved, key)
		}
	}
	p.file.Header = &h
	return nil
}

func headerForm() *regexp.Regexp {
	return regexp.MustCompile(`^# leasehold: epoch=(0|[1-9][0-9]*) managed=(0x[0-9a-f]{4})-(0x[0-9a-f]{4})` +
		`(?: reserved=(0x[0-9a-f]{4}(?:,0x[0-9a-f]{4})*))?$`)
}

// segment reads what stands on a line before a semicolon, or to its end.
func (p *parser) segment(text string, ended bool) error {
	if !p.open {
		if strings.TrimSpace(text) == "" {
			if ended {
				return fmt.Errorf("a semicolon without a definition")
			}
			return nil
		}
		head, members, found := strings.Cut(text, ":")
		if !found {
			return fmt.Errorf("a definition's head does not end on its line")
		}
		if err := p.begin(head); err != nil {
			return err
		}
		text = members
	}
	if err := p.members(text); err != nil {
		return err
	}
	if ended {
		return p.finish()
	}
	return nil
}

// begin reads a head: name=key, flags.
func (p *parser) begin(head string) error {
	p.open, p.current, p.defaults, p.needMember, p.needComma = true, partition{}, nil, false, false
	words := strings.Split(head, ",")
	name, key, found := strings.Cut(words[0], "=")
	if !found {
		return fmt.Errorf("definition without a key")
	}
	p.current.Name = strings.TrimSpace(name)
	number, err := parseNumber(strings.TrimSpace(key), 4, 16)
	if err != nil {
		return fmt.Errorf("key of %q: %w", p.current.Name, err)
	}
	p.current.PKey = protocol.PKey(number) //nolint:gosec // parsed as 16 bits
	p.isDefault = p.current.PKey == protocol.DefaultLimited && p.current.Name == defaultName
	for _, flag := range words[1:] {
		if err := p.flag(strings.TrimSpace(flag)); err != nil {
			return err
		}
	}
	return p.checkHead()
}

func (p *parser) flag(word string) error {
	switch {
	case word == "indx0" && !p.current.Index0:
		p.current.Index0 = true
	case word == "ipoib" && !p.current.IPoIB:
		p.current.IPoIB = true
	default:
		return fmt.Errorf("flag %q of %q", word, p.current.Name)
	}
	return nil
}

func (p *parser) checkHead() error {
	c := p.current
	switch {
	case p.isDefault && (c.Index0 || c.IPoIB):
		return fmt.Errorf("the default partition has flags")
	case p.isDefault && p.seenDefault:
		return fmt.Errorf("a second rule for the default partition")
	case p.isDefault:
		return nil
	case c.PKey < protocol.FirstPartitionID || c.PKey > protocol.LastPartitionID:
		return fmt.Errorf("key %v of %q", c.PKey, c.Name)
	case !nameForm(c.Name):
		return fmt.Errorf("name %q", c.Name)
	case p.keys[c.PKey]:
		return fmt.Errorf("key %v is used twice: OpenSM would merge the two", c.PKey)
	case p.names[c.Name]:
		return fmt.Errorf("name %q is used twice", c.Name)
	}
	p.keys[c.PKey], p.names[c.Name] = true, true
	return nil
}

// nameForm allows what can stand in a head. Foreign partitions may be named more freely than ours.
func nameForm(name string) bool {
	if name == "" || len(name) > 63 || (name[0] >= '0' && name[0] <= '9') {
		return false
	}
	for _, r := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.", r) {
			return false
		}
	}
	return true
}

// members reads a list of members, or a part of one.
func (p *parser) members(text string) error {
	for i, word := range strings.Split(text, ",") {
		if i > 0 {
			if !p.needComma {
				return fmt.Errorf("a comma without a member")
			}
			p.needComma, p.needMember = false, true
		}
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		if p.needComma {
			return fmt.Errorf("a comma is missing before %q", word)
		}
		if err := p.member(word); err != nil {
			return err
		}
		p.needComma, p.needMember = true, false
	}
	return nil
}

func (p *parser) member(word string) error {
	if p.isDefault {
		p.defaults = append(p.defaults, strings.Join(strings.Fields(word), ""))
		return nil
	}
	port, membership, found := strings.Cut(word, "=")
	if !found {
		return fmt.Errorf("member %q without a membership", word)
	}
	number, err := parseNumber(strings.TrimSpace(port), 16, 64)
	if err != nil {
		return fmt.Errorf("member %q: %w", word, err)
	}
	m := member{GUID: protocol.GUID(number)}
	switch strings.TrimSpace(membership) {
	case "full":
		m.Full = true
	case "limited":
	default:
		return fmt.Errorf("membership of %q", word)
	}
	if m.GUID == 0 {
		return fmt.Errorf("member %q", word)
	}
	p.current.Members = append(p.current.Members, m)
	return nil
}

// parseNumber reads "0x" and exactly so many lower-case digits: fewer may be a number cut short.
func parseNumber(word string, digits, bits int) (uint64, error) {
	hex, found := strings.CutPrefix(word, "0x")
	if !found || len(hex) != digits || strings.ContainsFunc(hex, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) }) {
		return 0, fmt.Errorf("%q is not 0x and %d hex digits", word, digits)
	}
	return strconv.ParseUint(hex, 16, bits)
}

// finish ends a definition at its semicolon.
func (p *parser) finish() error {
	p.open = false
	if p.needMember {
		return fmt.Errorf("a comma without a member")
	}
	if p.isDefault {
		p.seenDefault = true
		if strings.Join(p.defaults, " ") != "ALL=limited ALL_SWITCHES=full SELF=full" {
			return fmt.Errorf("the default partition is not ALL=limited, ALL_SWITCHES=full, SELF=full")
		}
		return nil
	}
	if len(p.current.Members) == 0 {
		return fmt.Errorf("partition %q has no members", p.current.Name)
	}
	if err := noMemberTwice(p.current); err != nil {
		return err
	}
	p.file.Partitions = append(p.file.Partitions, p.current)
	return nil
}

func noMemberTwice(p partition) error {
	seen := map[protocol.GUID]bool{}
	for _, m := range p.Members {
		if seen[m.GUID] {
			return fmt.Errorf("port %v is in %q twice", m.GUID, p.Name)
		}
		seen[m.GUID] = true
	}
	return nil
}
