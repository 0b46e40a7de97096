package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/spf13/cobra"

	"heddle.io/heddle/control/server/client"
)

func (s *session) logsCommand() *cobra.Command {
	var follow, proxy, controller, agent bool
	var tail int
	cmd := &cobra.Command{
		Use: "logs (WORKLOAD | REPLICA)", Short: "Print what an application or its proxy wrote",
		Long:    "Print what an application or its proxy wrote.\n\nLogs outlive a replica that ended, was stopped or was replaced. They go when the workload is deleted.",
		Example: "  heddle logs -n pinnacle checkoutservice -f\n  heddle logs -n istio-system istio-ingressgateway --proxy --tail 50\n  heddle logs --controller",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			if tail >= 0 {
				query.Set("tail", strconv.Itoa(tail))
			}
			if follow {
				query.Set("follow", "1")
			}
			c, err := s.client()
			if err != nil {
				return err
			}
			switch {
			case controller || agent:
				if len(args) > 0 || controller && agent {
					return usageError{errors.New("give one of a workload, --controller and --agent")}
				}
				part := "controller"
				if agent {
					part = "agent"
				}
				return s.stream(cmd.Context(), c, "/heddle/v1/logs/"+part+"?"+query.Encode(), "", &sync.Mutex{})
			case len(args) == 0:
				return usageError{errors.New("say which workload, or --controller or --agent")}
			}
			replicas, err := s.replicasOf(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return s.streamAll(cmd.Context(), c, replicas, proxy, query)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on printing what is written")
	cmd.Flags().IntVar(&tail, "tail", -1, "print the last lines only")
	cmd.Flags().BoolVar(&proxy, "proxy", false, "the proxy's log instead of the application's")
	cmd.Flags().BoolVar(&controller, "controller", false, "the controller's log")
	cmd.Flags().BoolVar(&agent, "agent", false, "the agent's log")
	s.namespaceFlag(cmd)
	return cmd
}

func (s *session) streamAll(ctx context.Context, c *client.Client, replicas []client.Replica, proxy bool, query url.Values) error {
	var group sync.WaitGroup
	var lock sync.Mutex
	failures := make([]error, len(replicas))
	for i, r := range replicas {
		part := "app"
		if proxy || r.Gateway {
			part = "proxy"
		}
		path := fmt.Sprintf("/heddle/v1/logs/%s/%s/%s?%s", url.PathEscape(r.Namespace), url.PathEscape(r.State.Name), part, query.Encode())
		prefix := ""
		if len(replicas) > 1 {
			prefix = "[" + r.State.Name + "] "
		}
		if query.Get("follow") == "" {
			// One after the other reads better, and ends.
			failures[i] = s.stream(ctx, c, path, prefix, &lock)
			continue
		}
		group.Go(func() { failures[i] = s.stream(ctx, c, path, prefix, &lock) })
	}
	group.Wait()
	return errors.Join(failures...)
}

// stream prints a log line by line.
func (s *session) stream(ctx context.Context, c *client.Client, path, prefix string, lock sync.Locker) error {
	body, err := c.Open(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	reader := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			lock.Lock()
			_, writeErr := io.WriteString(s.out, prefix+line)
			lock.Unlock()
			if writeErr != nil {
				return writeErr
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) || ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("log ended: %w", err)
		}
	}
}
