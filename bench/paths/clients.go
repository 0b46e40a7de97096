package paths

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"heddle.io/heddle/bench/load"
	"heddle.io/heddle/bench/peers"
)

// overKeptConnections takes turns on eight connections, so that what is ready together is always the same: one request.
func overKeptConnections(p Path, dir, address string, requests int) error {
	const connections = 8
	var kept [connections]*bufio.ReadWriter
	for i := range kept {
		conn, err := p.dial(dir, address)
		if err != nil {
			return err
		}
		defer conn.Close()
		kept[i] = bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
	}
	for i := range requests {
		if err := p.ask(kept[i%connections], address, ""); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return nil
}

// overNewConnections opens one for each request.
func overNewConnections(p Path, dir, address string, requests int) error {
	for i := range requests {
		conn, err := p.dial(dir, address)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		err = p.ask(bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), address, "Connection: close\r\n")
		if err = errors.Join(err, conn.Close()); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
	}
	return nil
}

// overHTTP2 keeps 32 streams busy on each of 8 connections.
func overHTTP2(p Path, _, address string, requests int) error {
	got, err := load.H2load(others, "https://"+address+p.Work.Target(), 8, 32, requests)
	return allAnswered(got, requests, err)
}

// overGRPC makes as many unary calls at a time.
func overGRPC(p Path, dir, address string, calls int) error {
	if err := peers.CheckGRPC(address); err != nil {
		return err
	}
	message, err := peers.GRPCMessage(dir)
	if err != nil {
		return err
	}
	got, err := load.H2loadGRPC(others, "https://"+address+p.Work.Target(), message, 8, 32, calls)
	return allAnswered(got, calls, err)
}

func allAnswered(got load.Result, requests int, err error) error {
	if err == nil && got.Requests != int64(requests) {
		err = fmt.Errorf("%d of %d requests were answered", got.Requests, requests)
	}
	return err
}

// dial connects as a client of this path does.
func (p Path) dial(dir, address string) (net.Conn, error) {
	if p.Work.TLS == "" {
		return net.DialTimeout("tcp", address, 10*time.Second)
	}
	// The proxy's certificate is its own authority; whose it is does not matter here.
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}
	if p.Work.Mesh {
		own, err := tls.LoadX509KeyPair(filepath.Join(dir, p.Work.TLS+".crt"), filepath.Join(dir, p.Work.TLS+".key"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{own}
	}
	return tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", address, config)
}

// ask sends a request such as a browser's, and reads its answer.
func (p Path) ask(conn *bufio.ReadWriter, host, more string) error {
	request := "GET " + p.target() + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: Mozilla/5.0\r\nAccept: text/html\r\n" +
		"Accept-Encoding: gzip\r\nAccept-Language: en\r\nCookie: " + cmp.Or(p.Cookie, "session=7b0b5f4c") + "\r\n" + more + "\r\n"
	if _, err := conn.WriteString(request); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return err
	}
	answer, err := http.ReadResponse(conn.Reader, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", answer.Status)
	}
	return nil
}
