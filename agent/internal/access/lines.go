package access

import (
	"bufio"
	"context"
	"io"
	"strings"

	"golang.org/x/term"
)

// maxLine bounds a line of a session without a terminal.
const maxLine = 64 << 10

// Lines makes sessions of a shell that knows lines only.
func Lines(shell Shell) Sessions { return lines{shell} }

type lines struct{ Shell }

// Serve implements Sessions.
func (l lines) Serve(ctx context.Context, place string, s Session) int {
	switch {
	case s.Command == "true": // what the driver itself tries
		return 0
	case s.Command != "":
		status, _ := l.Run(ctx, place, s.Command, newlines(s.Out, s.Terminal), newlines(s.Err, s.Terminal))
		return status
	case s.Terminal != nil:
		return l.interactive(ctx, place, s)
	default:
		return l.script(ctx, place, s)
	}
}

// newlines turns line ends into those that a terminal needs, when there is one.
func newlines(w io.Writer, t *Terminal) io.Writer {
	if t != nil {
		return crlf{w}
	}
	return w
}

type crlf struct{ io.Writer }

// Write implements io.Writer.
func (c crlf) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.Writer, strings.ReplaceAll(string(p), "\n", "\r\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (l lines) interactive(ctx context.Context, place string, s Session) int {
	t := term.NewTerminal(readWriter{s.In, s.Out}, l.Prompt(place))
	_ = t.SetSize(s.Terminal.Size.Columns, s.Terminal.Size.Rows) //nolint:errcheck // a strange size is the client's affair
	go func() {
		for size := range s.Terminal.Resizes {
			_ = t.SetSize(size.Columns, size.Rows) //nolint:errcheck // a strange size is the client's affair
		}
	}()
	if _, err := io.WriteString(t, l.Welcome(place)); err != nil {
		return statusRefused
	}
	last := 0
	for {
		line, err := t.ReadLine()
		if err != nil {
			return last
		}
		status, done := l.Run(ctx, place, line, t, t)
		if last = status; done {
			return last
		}
	}
}

type readWriter struct {
	io.Reader
	io.Writer
}

// script runs the lines that come without a terminal, e.g. from a pipe.
func (l lines) script(ctx context.Context, place string, s Session) int {
	scanner := bufio.NewScanner(s.In)
	scanner.Buffer(nil, maxLine)
	last := 0
	for scanner.Scan() {
		status, done := l.Run(ctx, place, scanner.Text(), s.Out, s.Err)
		if last = status; done {
			break
		}
	}
	return last
}
