// SPDX-License-Identifier: Apache-2.0
// Prints the lines of JMeter's Aggregate Report of a .jtl, by the class that the report itself is made with, as CSV:
// label, samples, mean, median, 90 % line, min, max, share of errors, throughput (/s), KB/s.
import org.apache.jmeter.reporters.ResultCollector
import org.apache.jmeter.samplers.SampleResult
import org.apache.jmeter.save.CSVSaveService
import org.apache.jmeter.util.JMeterUtils
import org.apache.jmeter.visualizers.SamplingStatCalculator
import org.apache.jmeter.visualizers.Visualizer

class Aggregate implements Visualizer {
    Map<String, SamplingStatCalculator> lines = new LinkedHashMap<>()

    void add(SampleResult sample) {
        for (label in [sample.sampleLabel, 'TOTAL']) {
            lines.computeIfAbsent(label) { new SamplingStatCalculator(it) }.addSample(sample)
        }
    }

    boolean isStats() { false }
}

JMeterUtils.setJMeterHome(args[0])
JMeterUtils.loadJMeterProperties(args[0] + '/bin/jmeter.properties')
def aggregate = new Aggregate()
CSVSaveService.processSamples(args[1], aggregate, new ResultCollector())
for (line in aggregate.lines.values()) {
    println([line.label, line.count, line.mean, line.median, line.getPercentPoint(0.9d), line.min, line.max,
             line.errorPercentage, line.rate, line.getKBPerSecond()].join(','))
}
