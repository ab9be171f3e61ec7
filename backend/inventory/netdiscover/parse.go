package netdiscover

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of a file. The largest subnet has 48 thousand LIDs; a device's block is a few hundred bytes, plus one line a port.
const (
	MaxBytes      = 64 << 20
	maxLineLength = 4096 // bytes; descriptions have at most 64
)

// Parse reads a file of either dialect.
//
// The error is Defects: lines that are malformed or cut off, a GUID or a port that two things have, a port that its device does not
// have, a cable whose ends disagree or both are on one device, a device that is named and not described. A line that is there twice,
// to the letter, counts once.
func Parse(file []byte) (Graph, error) {
	if len(file) > MaxBytes {
		return Graph{}, Defects{{Reason: fmt.Sprintf("the file is larger than %d bytes", MaxBytes)}}
	}
	p := parser{grammar: newGrammar()}
	number := 0
	for line := range bytes.Lines(file) {
		number++
		if err := p.take(line, number); err != nil {
			p.defects = append(p.defects, Defect{Line: number, Reason: err.Error()})
		}
		if len(p.defects) == maxDefects {
			return Graph{}, p.defects
		}
	}
	if p.pending.of != "" {
		p.defects = append(p.defects, Defect{Line: p.pending.line, Reason: "no device follows its GUID: the file is cut off"})
	}
	if len(p.blocks) == 0 && len(p.defects) == 0 {
		p.defects = Defects{{Reason: "the file describes no device"}}
	}
	if len(p.defects) > 0 {
		return Graph{}, p.defects
	}
	return join(p.blocks, p.format())
}

// parser goes through the lines.
type parser struct {
	grammar grammar
	blocks  []*block
	pending attributes
	open    bool // a block is open, so that ports may follow
	hcaWord bool // the word that only netlists have
	defects Defects
}

func (p *parser) take(raw []byte, number int) error {
	line, err := text(raw)
	if err != nil || line == "" || strings.HasPrefix(line, "#") {
		return err
	}
	if m := p.grammar.attribute.FindStringSubmatch(line); m != nil {
		p.open = false
		return p.pending.take(m, number)
	}
	if m := p.grammar.head.FindStringSubmatch(line); m != nil {
		return p.takeHead(m, number)
	}
	if m := p.grammar.port.FindStringSubmatch(line); m != nil {
		return p.takePort(m, line, number)
	}
	if p.grammar.heading.MatchString(line) {
		p.open = false
		return nil
	}
	return fmt.Errorf("%s is no line of a topology: malformed, or cut off", quote(line))
}

// text is the line without its end and the space around it.
func text(raw []byte) (string, error) {
	switch {
	case len(raw) > maxLineLength:
		return "", fmt.Errorf("the line is longer than %d bytes", maxLineLength)
	case bytes.IndexByte(raw, 0) >= 0:
		return "", errors.New("the line has the character NUL: this is no text")
	}
	return strings.TrimSpace(string(raw)), nil
}

func (p *parser) takeHead(m []string, number int) error {
	before := p.pending
	p.pending, p.open = attributes{}, false
	p.hcaWord = p.hcaWord || m[1] == "Hca"
	b, err := p.grammar.parseHead(m, before, number)
	if err != nil {
		return err
	}
	p.blocks, p.open = append(p.blocks, &b), true
	return nil
}

func (p *parser) takePort(m []string, line string, number int) error {
	if !p.open || len(p.blocks) == 0 {
		if len(p.defects) > 0 {
			return nil // of a block whose head is defective: that was said
		}
		return errors.New("a port without a device before it")
	}
	b := p.blocks[len(p.blocks)-1]
	port, err := p.grammar.parsePort(b, m, number)
	if err != nil {
		return err
	}
	port.text = line
	if first, double := b.at[port.port]; double {
		if b.lines[first].text == line {
			return nil
		}
		return fmt.Errorf("port %d of %q is cabled already (line %d)", port.port, b.file, b.lines[first].line)
	}
	b.at[port.port] = len(b.lines)
	b.lines = append(b.lines, port)
	return nil
}

// format is the dialect: ibnetdiscover calls adapters Ca and devices by their GUIDs.
func (p *parser) format() Format {
	byGUID := func(b *block) bool { return b.file == discoveredName(b.Device) }
	if p.hcaWord || !slices.ContainsFunc(p.blocks, byGUID) {
		return Netlist
	}
	return Ibnetdiscover
}

// discoveredName is what ibnetdiscover calls a device.
func discoveredName(d Device) string {
	letter := map[Kind]string{Switch: "S", HCA: "H", Router: "R"}[d.Kind]
	return fmt.Sprintf("%s-%016x", letter, uint64(d.GUID))
}
