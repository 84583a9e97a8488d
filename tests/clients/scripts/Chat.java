// Chats through the JDK's own HTTP client, as Spring AI and LangChain4j do. Argument: where the server is.
// The client offers h2c with the first request of a connection.

import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

public class Chat {
    static final String MESSAGES = "\"messages\": [{\"role\": \"user\", \"content\": \"Count to three.\"}]";

    static HttpRequest request(String base, boolean streams, boolean hasLength) {
        byte[] body = ("{" + MESSAGES + ", \"max_tokens\": 8, \"stream\": " + streams + "}").getBytes(StandardCharsets.UTF_8);
        BodyPublisher chunks = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body));
        return HttpRequest.newBuilder(URI.create(base + "/v1/chat/completions"))
                .header("Content-Type", "application/json")
                .POST(hasLength ? BodyPublishers.ofByteArray(body) : chunks)
                .build();
    }

    static void check(boolean holds, Object found) {
        if (!holds) throw new AssertionError(found);
    }

    public static void main(String[] arguments) throws Exception {
        String base = arguments[0];
        for (boolean hasLength : new boolean[] {true, false}) {
            HttpClient client = HttpClient.newHttpClient(); // a connection that has not been offered h2c yet
            for (int i = 0; i < 2; i++) {
                var answer = client.send(request(base, false, hasLength), BodyHandlers.ofString());
                check(answer.statusCode() == 200 && answer.body().contains("\"finish_reason\""), answer.body());
                var stream = client.send(request(base, true, hasLength), BodyHandlers.ofLines());
                check(stream.body().filter(line -> !line.isEmpty()).reduce((a, b) -> b).get().equals("data: [DONE]"), "no end");
            }
        }
        HttpClient client = HttpClient.newHttpClient();
        var together = Stream.generate(() -> client.sendAsync(request(base, false, true), BodyHandlers.ofString()))
                .limit(8).toList(); // connections of their own
        for (CompletableFuture<java.net.http.HttpResponse<String>> each : together) {
            check(each.get().statusCode() == 200, each.get().body());
        }
        System.out.println("ok");
    }
}
