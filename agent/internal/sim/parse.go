package sim

import "errors"

// command is one command of a line: its words and where its output goes.
type command struct {
	words    []string
	to       string // file, "" for the terminal
	appends  bool
	onlyIfOK bool // it stands behind &&
}

var errSyntax = errors.New("syntax error")

// parseLine reads a line of the built-in shell: words with quotes and backslashes, ; and && between commands, > and >> into a
// file. There are no variables, pipes or wildcards.
func parseLine(line string) ([]command, error) {
	tokens, err := scan(line)
	if err != nil {
		return nil, err
	}
	var commands []command
	var current command
	finish := func(next command, needed bool) bool {
		if len(current.words) == 0 {
			return !needed && !current.onlyIfOK && current.to == ""
		}
		commands = append(commands, current)
		current = next
		return true
	}
	for i := 0; i < len(tokens); i++ {
		t := tokens[i]
		ok := true
		switch {
		case !t.operator:
			current.words = append(current.words, t.text)
		case t.text == ";":
			ok = finish(command{}, false)
		case t.text == "&&":
			ok = finish(command{onlyIfOK: true}, true)
		default: // > and >>
			ok = i+1 < len(tokens) && !tokens[i+1].operator
			if ok {
				i++
				current.to, current.appends = tokens[i].text, t.text == ">>"
			}
		}
		if !ok {
			return nil, errSyntax
		}
	}
	if !finish(command{}, false) {
		return nil, errSyntax
	}
	return commands, nil
}

// token is a word or an operator.
type token struct {
	text     string
	operator bool
}

// scanner cuts a line into tokens.
type scanner struct {
	tokens []token
	word   []byte
	inWord bool
}

func scan(line string) ([]token, error) {
	var s scanner
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t', '\r', '\n':
			s.endWord()
		case '\'', '"':
			n, ok := s.quoted(line[i+1:], c)
			if !ok {
				return nil, errSyntax
			}
			i += n
		case '\\':
			if i+1 == len(line) {
				return nil, errSyntax
			}
			i++
			s.add(line[i])
		case ';', '&', '|', '<', '>':
			operator := string(c)
			if i+1 < len(line) && line[i+1] == c && c != ';' {
				operator += string(c)
				i++
			}
			if operator != ";" && operator != "&&" && operator != ">" && operator != ">>" {
				return nil, errSyntax
			}
			s.endWord()
			s.tokens = append(s.tokens, token{text: operator, operator: true})
		default:
			s.add(c)
		}
	}
	s.endWord()
	return s.tokens, nil
}

func (s *scanner) add(c byte) {
	s.word, s.inWord = append(s.word, c), true
}

// quoted takes what stands before the closing quote and returns how many bytes that were, the quote included.
func (s *scanner) quoted(rest string, quote byte) (int, bool) {
	s.inWord = true
	for i := range len(rest) {
		if rest[i] == quote {
			return i + 1, true
		}
		s.word = append(s.word, rest[i])
	}
	return 0, false
}

func (s *scanner) endWord() {
	if s.inWord {
		s.tokens = append(s.tokens, token{text: string(s.word)})
		s.word, s.inWord = nil, false
	}
}
