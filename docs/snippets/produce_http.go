// Send two prompts to a run's gateway, and follow the first: go run produce_http.go http://127.0.0.1:8500 demo TOKEN
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

type prompt struct {
	Key    string `json:"key"`
	Prompt string `json:"prompt"`
	Label  string `json:"label"`
}

type taken struct {
	Groups []struct{ Key, Group string } `json:"groups"`
}

func ask(method, url, token string, body []byte) *http.Response {
	for {
		request, err := http.NewRequest(method, url, bytes.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(request)
		if err == nil && answer.StatusCode < 300 {
			return answer
		}
		wait := 1
		if err == nil {
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != 429 && answer.StatusCode != 503 {
				log.Fatal(answer.Status, " ", string(text))
			}
			if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil {
				wait = seconds
			}
		}
		time.Sleep(time.Duration(wait) * time.Second) // the keys make it safe to send the same again
	}
}

func main() {
	url, token := os.Args[1]+"/v1/runs/"+os.Args[2], os.Args[3]
	prompts := []prompt{{"quiz-3", "What is 3 + 3?", "6"}, {"quiz-4", "What is 4 + 4?", "8"}}
	body, _ := json.Marshal(prompts)
	answer := ask("POST", url+"/prompts", token, body)
	var sent taken
	if err := json.NewDecoder(answer.Body).Decode(&sent); err != nil {
		log.Fatal(err)
	}
	answer.Body.Close()
	events := ask("GET", url+"/groups/"+sent.Groups[0].Group+"/events", token, nil)
	defer events.Body.Close()
	if _, err := io.Copy(os.Stdout, events.Body); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
