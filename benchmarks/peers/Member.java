// One member of a JGroups group: it obeys and answers as worker.py does, line by line.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.jgroups.Address;
import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.util.MessageBatch;

public class Member implements Receiver {
    final Semaphore came = new Semaphore(0);
    final PrintStream answers = System.out; // JGroups writes there too
    JChannel channel;
    String command;

    public static void main(String[] arguments) throws Exception {
        try {
            new Member().run();
        } finally {
            System.exit(0); // whatever threads there are
        }
    }

    void run() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        command = input.readLine();
        String name = text("name"), group = text("group");
        String[] ports = text("ports").split("/");
        String own = ports[Integer.parseInt(name.substring(1))], hosts = "";
        for (String port : ports)
            hosts += (hosts.isEmpty() ? "" : ",") + "127.0.0.1[" + port + "]";
        if (input.readLine() == null)
            return;
        System.setOut(System.err);
        System.setProperty("jgroups.bind_addr", "127.0.0.1");
        System.setProperty("jgroups.tcpping.initial_hosts", hosts);
        channel = new JChannel("tcp.xml").name(name).setReceiver(this);
        channel.getProtocolStack().getTransport().setBindPort(Integer.parseInt(own));
        channel.setDiscardOwnMessages(true);
        channel.connect(group);
        answers.println("{}");
        while ((command = input.readLine()) != null) {
            switch (text("op")) {
                case "view" -> {
                    for (int turn = 0; channel.view().size() < ports.length; turn++) {
                        if (turn == 6000)
                            throw new IllegalStateException("in a minute no view of all");
                        Thread.sleep(10);
                    }
                    answers.println("{}");
                }
                case "round" -> round();
                case "ask" -> ask();
                case "reply" -> reply();
                default -> throw new IllegalStateException(command);
            }
        }
        channel.close();
    }

    public void receive(Message message) {
        came.release();
    }

    public void receive(MessageBatch batch) {
        came.release(batch.size());
    }

    void round() throws Exception {
        int count = number("send"), expected = number("expect") - (text("to") == null ? count : 0);
        Address to = address(text("to"));
        byte[] payload = new byte[number("size")];
        long started = System.nanoTime(), cpu = cpu();
        Thread sender = new Thread(() -> send(to, payload, count));
        sender.start();
        if (!came.tryAcquire(Math.max(0, expected), 60, TimeUnit.SECONDS)) {
            answers.println("{\"stuck\": \"has " + came.availablePermits() + " of " + expected + "\"}");
            return;
        }
        long took = System.nanoTime() - started;
        sender.join();
        if (expected <= 0)
            took = System.nanoTime() - started;
        Runtime machine = Runtime.getRuntime();
        answers.printf(
            "{\"seconds\": %.6f, \"delivered\": %d, \"lost\": 0, \"cpu_s\": %.6f, \"rss_mb\": %d, "
                + "\"retransmitted\": 0, \"reports\": 0}%n",
            took / 1e9, expected > 0 ? expected + count : 0, (cpu() - cpu) / 1e9,
            machine.totalMemory() >> 20);
    }

    void ask() throws Exception {
        Address to = address(text("to"));
        byte[] payload = new byte[number("size")];
        long[] times = new long[number("count")];
        for (int at = 0; at < times.length; at++) {
            long started = System.nanoTime();
            send(to, payload, 1);
            came.acquire();
            times[at] = System.nanoTime() - started;
        }
        String all = java.util.Arrays.stream(times).mapToObj(Long::toString).collect(Collectors.joining(","));
        answers.println("{\"times_ns\": [" + all + "]}");
    }

    void reply() throws Exception {
        Address to = address(text("to"));
        byte[] payload = new byte[number("size")];
        for (int at = number("count"); at > 0; at--) {
            came.acquire();
            send(to, payload, 1);
        }
    }

    void send(Address to, byte[] payload, int count) {
        try {
            for (int at = 0; at < count; at++)
                channel.send(new BytesMessage(to, payload));
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    Address address(String name) {
        List<Address> members = channel.view().getMembers();
        return members.stream().filter(each -> each.toString().equals(name)).findFirst().orElse(null);
    }

    static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
            .getProcessCpuTime();
    }

    int number(String key) {
        return Integer.parseInt(text(key));
    }

    String text(String key) {
        Matcher found = Pattern.compile("\"" + key + "\": \"?([^\",}]+)").matcher(command);
        return found.find() ? found.group(1) : null;
    }
}
