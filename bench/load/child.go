package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"heddle.io/heddle/bench/process"
)

// inChild runs this program once more in that place, as the client that a flag stands for: it reads what it is told from standard
// input and writes what came of it, both as JSON. It gives what that client took.
func inChild(at process.Place, flag string, told, result any) (*os.ProcessState, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	in, err := json.Marshal(told)
	if err != nil {
		return nil, err
	}
	command := at.Command(self, flag)
	var out bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(in), &out, os.Stderr
	if err := at.Launch(command); err != nil {
		return nil, fmt.Errorf("client %s: %w", flag, err)
	}
	if err := command.Wait(); err != nil {
		return nil, fmt.Errorf("client %s: %w", flag, err)
	}
	if err := json.Unmarshal(out.Bytes(), result); err != nil {
		return nil, fmt.Errorf("client %s wrote no result: %w", flag, err)
	}
	return command.ProcessState, nil
}

// asTold is the other side of [inChild]: it reads what was told and writes what comes of doing it.
func asTold[Told, Result any](flag string, in io.Reader, out io.Writer, do func(Told) (Result, error)) error {
	var told Told
	if err := json.NewDecoder(in).Decode(&told); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	result, err := do(told)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return json.NewEncoder(out).Encode(result)
}
