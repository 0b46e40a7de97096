package sandbox

import (
	"errors"
	"fmt"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	profile "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Filter has the kernel refuse the calling thread, and what it becomes, the system calls that Docker refuses containers
// with these capabilities. no_new_privs is set already ([Become]).
func Filter(capabilities []string) error {
	policy, err := policy(capabilities)
	if err != nil {
		return err
	}
	if err := seccomp.LoadFilter(seccomp.Filter{Policy: *policy}); err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	return nil
}

// policy translates Docker's list. What it says nothing of is answered with EPERM, also when it comes in the 32-bit form.
func policy(capabilities []string) (*seccomp.Policy, error) {
	bounding := make([]string, 0, len(capabilities))
	for _, name := range capabilities {
		bounding = append(bounding, "CAP_"+name)
	}
	docker, err := profile.GetDefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: bounding}}})
	if err != nil {
		return nil, fmt.Errorf("list system calls: %w", err)
	}
	machine, err := arch.GetInfo("")
	if err != nil {
		return nil, fmt.Errorf("list system calls: %w", err)
	}
	if docker.DefaultAction != specs.ActErrno {
		return nil, fmt.Errorf("system calls: default %s where %s was expected", docker.DefaultAction, specs.ActErrno)
	}
	out := &seccomp.Policy{DefaultAction: seccomp.ActionErrno}
	allowed := seccomp.SyscallGroup{Action: seccomp.ActionAllow}
	seen := map[string]bool{}
	for _, rule := range docker.Syscalls {
		for _, name := range rule.Names {
			if _, ok := machine.SyscallNames[name]; !ok || seen[name] {
				// Of another architecture, or allowed without conditions already.
				continue
			}
			switch {
			case rule.Action == specs.ActErrno:
				out.Syscalls = append(out.Syscalls, seccomp.SyscallGroup{Names: []string{name}, Action: refuse(rule.ErrnoRet)})
			case rule.Action != specs.ActAllow:
				return nil, fmt.Errorf("system call %s: action %s is not known here", name, rule.Action)
			case len(rule.Args) == 0:
				allowed.Names = append(allowed.Names, name)
			default:
				when, err := conditions(rule.Args)
				if err != nil {
					return nil, fmt.Errorf("system call %s: %w", name, err)
				}
				allowed.NamesWithCondtions = append(allowed.NamesWithCondtions, seccomp.NameWithConditions{Name: name, Conditions: when})
				continue
			}
			seen[name] = true
		}
	}
	out.Syscalls = append(out.Syscalls, allowed)
	return out, nil
}

func refuse(errno *uint) seccomp.Action {
	if errno == nil {
		return seccomp.ActionErrno | seccomp.Action(unix.EPERM)
	}
	return seccomp.ActionErrno | seccomp.Action(*errno)
}

var comparisons = map[specs.LinuxSeccompOperator]seccomp.Operation{
	specs.OpEqualTo: seccomp.Equal, specs.OpNotEqual: seccomp.NotEqual, specs.OpLessThan: seccomp.LessThan, specs.OpLessEqual: seccomp.LessOrEqual,
	specs.OpGreaterThan: seccomp.GreaterThan, specs.OpGreaterEqual: seccomp.GreaterOrEqual,
}

func conditions(args []specs.LinuxSeccompArg) (seccomp.ArgumentConditions, error) {
	var out seccomp.ArgumentConditions
	for _, a := range args {
		c := seccomp.Condition{Argument: uint32(a.Index), Value: a.Value, Operation: comparisons[a.Op]}
		if a.Op == specs.OpMaskedEqual && a.ValueTwo == 0 {
			// None of the bits of the mask.
			c.Operation = seccomp.BitsNotSet
		}
		if c.Operation == "" {
			return nil, errors.New("comparison " + string(a.Op) + " is not known here")
		}
		out = append(out, c)
	}
	return out, nil
}
