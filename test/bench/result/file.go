package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// CutHeader splits JSON that was printed with a header into that and the
// lines of results.
func CutHeader(b []byte) (Host, []byte, error) {
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	var h header
	if err := json.Unmarshal(first, &h); err != nil {
		return Host{}, nil, fmt.Errorf("result: no line about the host: %w", err)
	}
	if h.Host.Where == "" || h.Host.Date == "" {
		return Host{}, nil, errors.New("result: the first line is not about the host")
	}
	return h.Host, rest, nil
}

// Parse reads what was printed with a header.
func Parse(b []byte) (Host, []Line, error) {
	h, rest, err := CutHeader(b)
	if err != nil {
		return h, nil, err
	}
	var lines []Line
	for row := range bytes.Lines(rest) {
		var l Line
		if err := json.Unmarshal(row, &l); err != nil {
			return h, nil, fmt.Errorf("result: line %d: %w", len(lines)+2, err)
		}
		lines = append(lines, l)
	}
	return h, lines, nil
}
