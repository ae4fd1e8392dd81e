"""What this machine is and can do: clock, processors, memory, devices, counters, noise, networks.

In `machine`: `examination.examine` looks at everything (`weft doctor`), `read_provenance_facts`
gives what every measurement records, `cpu.pick_cpus` chooses where to spin,
`examination.watch_noise` and `devices.read_counters` show what else happened during a run. Readers
take a root, so they can also read the recorded files of another host.
"""
