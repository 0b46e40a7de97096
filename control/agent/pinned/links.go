package pinned

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Attachment is a program that runs for a control group. Its link is pinned by its name.
type Attachment struct {
	Program string
	Kind    ebpf.AttachType
}

// Attach attaches programs to a control group (a directory of version 2) in this order, or puts them in place of those that an
// earlier process has pinned in dir. With an error come the links that there are by then; the caller closes them.
func Attach(dir, cgroup string, attachments []Attachment, programs map[string]*ebpf.Program) ([]link.Link, error) {
	var links []link.Link
	for _, a := range attachments {
		pin := filepath.Join(dir, a.Program)
		l, err := link.LoadPinnedLink(pin, nil)
		if err == nil {
			links = append(links, l)
			if err := l.Update(programs[a.Program]); err != nil {
				return links, fmt.Errorf("replace the program %s of the agent before: %w", a.Program, err)
			}
			continue
		}
		if !errors.Is(err, os.ErrNotExist) {
			return links, fmt.Errorf("open the link %s of the agent before: %w", a.Program, err)
		}
		l, err = link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: a.Kind, Program: programs[a.Program]})
		if err != nil {
			return links, fmt.Errorf("attach the program %s to control group %s, which needs cgroup version 2: %w", a.Program, cgroup, err)
		}
		links = append(links, l)
		if err := l.Pin(pin); err != nil {
			return links, fmt.Errorf("pin the link %s: %w", a.Program, err)
		}
	}
	return links, nil
}

// IsAttached says whether [Attach] has come to the end of a list in this directory.
func IsAttached(dir string, attachments []Attachment) bool {
	_, err := os.Lstat(filepath.Join(dir, attachments[len(attachments)-1].Program))
	return err == nil
}
